/* Names, signatures and the plan: what a vote decides. N members submit K instances of B names; each
   instance has one of two signatures on each member, and the next instance of a name may be submitted as
   soon as done() of the last was called on that member, while others are still inside the vote. The plan
   holds CAP names beyond those that somebody has ready.

   Checked: a name runs only when it is pending on all with the same signature, and fails only when pending
   on all with unequal ones; instance by instance all members see the same outcome; at quiescence every
   instance has run or failed everywhere.
   Abstracted: messages (votes.pml): the last to enter computes the outcome, each leaves when it likes. What
   a vote exchanges afterwards (signatures, records of new names) is part of the outcome, as all are at the
   boundary. LRU: any name that nobody has ready may be evicted. The order of the plan: what runs at one
   boundary is in an order all compute alike.
   Wrong variants: CLEAR_LATE, NO_EXCHANGE, ERROR_EARLY, TRUST_PLAN, FIRST_ONLY. */
#ifndef N
#define N 2
#endif
#ifndef B
#define B 2
#endif
#ifndef K
#define K 2
#endif
#ifndef CAP
#define CAP 1
#endif
#define ABSENT 0                                 /* else signature + 1 */

typedef Name { byte submitted, done, errors; bit signature; bool pending }    /* errors: a bit per instance */
typedef Member { Name name[B]; bool fresh, inside }
typedef Record { bool ready[B], same[B]; bit signature[B] }
Member m[N];
Record record[N];                                /* what each member voted with */
/* changes only when a vote completes, and all members are in it then */
byte plan[B];
bool held[B], runs[B], fails[B];                 /* the outcome: ready on some, runs, fails */
byte entered, epoch, seen[N];                    /* members inside; votes completed, modulo 4 */

/* Whose message reaches whom first, in recursive doubling */
#if N == 2
#define HEARD m[1 - i].inside
#else
#define HEARD ((i != 0 && m[0].inside) || (i == 0 && (m[1].inside || m[2].inside)))
#endif
#define HAS_PENDING (m[i].name[0].pending || m[i].name[B - 1].pending || (B > 2 && m[i].name[1].pending))

inline submit(b_, signature_) {
  d_step { m[i].name[b_].signature = signature_; m[i].name[b_].submitted++;
           assert(!m[i].name[b_].pending); m[i].name[b_].pending = true; m[i].fresh = true }
}
#define IDLE(b) (m[i].name[b].submitted < K && m[i].name[b].submitted == m[i].name[b].done)

proctype App(byte i) {
end:
  do
  :: atomic { IDLE(0) -> if :: submit(0, 0) :: submit(0, 1) fi }
#if B > 1
  :: atomic { IDLE(B - 1) -> if :: submit(B - 1, 0) :: submit(B - 1, 1) fi }
#endif
#if B > 2
  :: atomic { IDLE(1) -> submit(1, 0) }          /* never a mismatch: keeps votes going */
#endif
  od
}

/* One name's part of the outcome, as every member computes it. */
inline decide() {
  all = true; some = false; same = true; equal = true; first = 0;
  for (j : 0 .. N - 1) {
    all = all && record[j].ready[b]; same = same && (!record[j].ready[b] || record[j].same[b]);
    if
    :: record[j].ready[b] && !some -> some = true; first = record[j].signature[b]
    :: record[j].ready[b] && some && record[j].signature[b] != first -> equal = false
    :: else
    fi
  }
  held[b] = some; runs[b] = false; fails[b] = false;
  if
#ifdef ERROR_EARLY
  :: plan[b] != ABSENT && some && !all && !same -> fails[b] = true   /* wrong: one may be still to come */
#endif
#ifdef NO_EXCHANGE
  :: plan[b] != ABSENT && all && !same          /* wrong: waits for signatures to agree by themselves */
#endif
#ifdef TRUST_PLAN
  :: plan[b] != ABSENT && all -> runs[b] = true /* wrong: known by name, so taken for equal */
#endif
#ifdef FIRST_ONLY
  /* wrong: the first to announce speaks for all */
  :: plan[b] == ABSENT && all -> plan[b] = first + 1; runs[b] = true
#endif
  :: else ->
     if :: plan[b] == ABSENT && some -> plan[b] = first + 1 :: else fi;     /* first seen wins */
     if
     :: all && same -> runs[b] = true
     /* after an exchange of signatures */
     :: all && !same && equal -> plan[b] = first + 1; runs[b] = true
     :: all && !same && !equal -> fails[b] = true
     :: else
     fi
  fi
}

inline check() {
  for (j : 0 .. N - 1) {
    assert(!(runs[b] || fails[b]) || m[j].name[b].pending);
    assert(!(runs[b] || fails[b]) || m[j].name[b].submitted == m[0].name[b].submitted);
    assert(!runs[b] || m[j].name[b].signature == m[0].name[b].signature)
  }
  assert(!fails[b] || !equal)
}

#define SIZE ((plan[0] > 0) + (B > 1 && plan[B - 1]) + (B > 2 && plan[1]))
/* Any victims will do, as long as all members choose the same */
inline evict() {
  do
  :: SIZE > CAP && plan[0] && !held[0] -> plan[0] = ABSENT
  :: SIZE > CAP && plan[B - 1] && !held[B - 1] -> plan[B - 1] = ABSENT
  :: SIZE > CAP && B > 2 && plan[1] && !held[1] -> plan[1] = ABSENT
  :: SIZE <= CAP -> break
  :: (!plan[0] || held[0]) && (!plan[B - 1] || held[B - 1]) && (B < 3 || !plan[1] || held[1]) -> break
  od
}

inline complete() {
  m[i].name[b].errors = m[i].name[b].errors | (fails[b] -> 1 << m[i].name[b].done : 0); m[i].name[b].done++
}

proctype Engine(byte i) {
  byte b, j, first; bool all, some, same, equal;
end:
  do
  :: HAS_PENDING && (m[i].fresh || HEARD) ->
     m[i].fresh = false;
     d_step {
       for (b : 0 .. B - 1) {
         record[i].ready[b] = m[i].name[b].pending;
         record[i].signature[b] = (m[i].name[b].pending -> m[i].name[b].signature : 0);
         record[i].same[b] = m[i].name[b].pending && (plan[b] == m[i].name[b].signature + 1)
       }
       m[i].inside = true; entered++; b = 0
     }
     if
     :: atomic {
          entered == N && epoch == seen[i] ->
          for (b : 0 .. B - 1) { decide(); check() }
          evict();
          for (j : 0 .. N - 1) { m[j].inside = false }
          entered = 0; epoch = (epoch + 1) % 4;
          b = 0; j = 0; all = 0; some = 0; same = 0; equal = 0; first = 0
        }
     :: epoch != seen[i]
     fi;
#ifdef CLEAR_LATE
     for (b : 0 .. B - 1) {
       if
       :: runs[b] || fails[b] ->
          complete();                  /* wrong: the app may submit the next instance before it is cleared */
          m[i].name[b].pending = false
       :: else
       fi
     }
     seen[i] = epoch; b = 0;
#else
     d_step {
       for (b : 0 .. B - 1) {
         if
         :: runs[b] || fails[b] -> m[i].name[b].pending = false; complete()
         :: else
         fi
       }
       seen[i] = epoch; b = 0
     }
#endif
  od
}

proctype Monitor() {
  byte k, b;
  timeout;
  for (k : 0 .. N - 1) {
    assert(!m[k].inside);
    for (b : 0 .. B - 1) {
      assert(m[k].name[b].done == K && !m[k].name[b].pending && m[k].name[b].errors == m[0].name[b].errors)
    }
  }
}

init {
  byte k;
  atomic { for (k : 0 .. N - 1) { run App(k); run Engine(k) } run Monitor() }
}

/* Sequences and failed steps. Each of K steps has a request X and a sequence S of two buckets, submitted in
   any order, on each member. The members may call X with unequal arguments in step 0: an agreed error,
   which ends that step: what is pending of it fails, what comes later is refused. S is pending from its
   first bucket on, whichever that is; agreeing commits both, and a bucket's transfer begins when it is
   submitted, under a tag that the ticket gives it. After a step has ended, its app may leave out what it
   has not submitted yet (a kernel that needs the failed one's output never starts). Peers may have begun
   the transfer of a bucket that is left out, so a step that ends on a member with an agreed instance of S
   incomplete there stops the job.

   OVERLAP: the next instance of X or of a bucket may come as soon as the last one is done, so instances of
   S overlap; without it a step begins when the one before it is over on that member.
   Checked: each transfer joins the same bucket of the same step on all members; at quiescence everything is
   done, with the same outcome on all members, or the job has been stopped.
   Abstracted: messages (votes.pml), plan and new names (names.pml).
   Wrong variants: NO_STOP, LATE_STOP, NO_REFUSAL, ONE_TAG, AGREED_FIRST (OVERLAP). */
#ifndef N
#define N 2
#endif
#ifndef K
#define K 2
#endif
#if !defined(NO_STOP) && !defined(LATE_STOP)
#define STOP_AT_ONCE                               /* when the step ends */
#endif
#define X 2                                        /* operations: 0 and 1 are the buckets */

typedef Member {
  byte next[3], done[3];                           /* steps submitted and done, by operation */
  byte ran[3];                                     /* a bit per step: it ran (else it failed) */
  byte ended;                                      /* a bit per step */
  bit signature; bool x, fresh, inside;            /* x: pending */
  byte buckets, step;                              /* of the pending instance of S */
  /* tickets; the step, and buckets submitted and finished under each */
  byte agreed, whose[K], given[K], finished[K];
  byte begun;                                      /* transfers */
}
Member m[N];
typedef Ticket { byte members[2]; byte step[2]; byte operation[2] }
Ticket ticket[K];                                  /* what takes part in each transfer */
bool recordX[N], recordS[N], runsX, failsX, runsS;
byte entered, epoch, seen[N], signatures;
bool stop;

#if N == 2
#define HEARD m[1 - i].inside
#else
#define HEARD ((i != 0 && m[0].inside) || (i == 0 && (m[1].inside || m[2].inside)))
#endif
#define LACKS(t, b) (t < m[i].agreed && !(m[i].given[t] & (1 << b)))
#define ENDED(s) (m[i].ended & (1 << (s)))
#ifdef OVERLAP
#define MAY_SUBMIT(o) (!stop && m[i].next[o] < K && m[i].done[o] == m[i].next[o])
#else
#define MAY_SUBMIT(o) (!stop && m[i].next[o] < K && m[i].done[0] >= m[i].next[o] && \
                       m[i].done[1] >= m[i].next[o] && m[i].done[X] >= m[i].next[o])
#endif

inline finish(o_, ok_) {
  m[i].ran[o_] = m[i].ran[o_] | (ok_ -> 1 << m[i].done[o_] : 0); m[i].done[o_]++
}

/* Bucket b_ of step s_ joins its transfer under ticket t_ */
inline begin(t_, b_, s_) {
  m[i].given[t_] = m[i].given[t_] | (1 << b_);
#ifdef ONE_TAG
  slot = m[i].begun;                               /* wrong: first begun here meets first begun there */
#else
  slot = 2 * t_ + b_;
#endif
  m[i].begun++;
  if
  :: ticket[slot / 2].members[slot % 2] == 0 ->
     ticket[slot / 2].step[slot % 2] = s_; ticket[slot / 2].operation[slot % 2] = b_
  :: else ->
     assert(ticket[slot / 2].step[slot % 2] == s_ && ticket[slot / 2].operation[slot % 2] == b_)
  fi;
  ticket[slot / 2].members[slot % 2]++; slot = 0
}

/* What belongs to a step that has ended is refused first: with OVERLAP an instance of a later step may lack
   the bucket. */
inline submit_bucket(b_) {
  d_step {
    s = m[i].next[b_]; m[i].next[b_]++; t = 0;
    do :: t < m[i].agreed && !LACKS(t, b_) -> t++ :: else -> break od;
    if
#ifdef LATE_STOP  /* wrong: two members may each wait for what the other left out */
    :: LACKS(0, b_) && m[i].whose[0] != s -> stop = true
#endif
    :: else ->
       if
#ifndef NO_REFUSAL
#ifdef AGREED_FIRST
       /* wrong: gives it to another step's instance */
       :: t == m[i].agreed && ENDED(s) -> finish(b_, false)
#else
       :: ENDED(s) -> finish(b_, false)
#endif
#endif
       :: else ->
          if
          :: t < m[i].agreed -> begin(t, b_, s)
          :: else ->
             assert(!(m[i].buckets & (1 << b_)));
             m[i].buckets = m[i].buckets | (1 << b_); m[i].step = s; m[i].fresh = true
          fi
       fi
    fi;
    s = 0; t = 0
  }
}

#define ARRIVED(t, b) (ticket[t].members[b] == N && !(m[i].finished[t] & (1 << b)))
inline arrive(t_, b_) {
  m[i].finished[t_] = m[i].finished[t_] | (1 << b_); assert(m[i].given[t_] & (1 << b_)); finish(b_, true)
}

inline submit_x(signature_) {
  d_step {
    m[i].signature = signature_; m[i].next[X]++;
    if
    :: ENDED(m[i].done[X]) -> finish(X, false)
    :: else -> m[i].x = true; m[i].fresh = true
    fi
  }
}

inline leave_out(b_) {
  d_step { m[i].next[b_]++; m[i].done[b_]++ }
}
#define MAY_LEAVE_OUT(b) (MAY_SUBMIT(b) && ENDED(m[i].next[b]) && LACKS(m[i].agreed - 1, b) && \
                     m[i].whose[m[i].agreed - 1] == m[i].next[b])

proctype App(byte i) {
  byte s, t, slot;
  do
  :: atomic { MAY_SUBMIT(0) -> submit_bucket(0) }
  :: atomic { MAY_SUBMIT(1) -> submit_bucket(1) }
  :: atomic { MAY_SUBMIT(X) && m[i].next[X] == 0 -> if :: submit_x(0) :: submit_x(1) fi }
  :: atomic { MAY_SUBMIT(X) && m[i].next[X] > 0 -> submit_x(0) }
  :: atomic { m[i].agreed > 0 && MAY_LEAVE_OUT(0) -> leave_out(0) }
  :: atomic { m[i].agreed > 0 && MAY_LEAVE_OUT(1) -> leave_out(1) }
  :: stop -> break
  :: atomic { !stop && m[i].next[0] == K && m[i].next[1] == K && m[i].next[X] == K ->
#ifdef LATE_STOP
       for (t : 0 .. K - 1) { stop = stop || LACKS(t, 0) || LACKS(t, 1) }     /* leaving */
#endif
       break }
  od
}

inline decide() {
  runsX = true; runsS = true; signatures = 0;
  for (j : 0 .. N - 1) {
    runsX = runsX && recordX[j]; runsS = runsS && recordS[j]; signatures = signatures | (1 << m[j].signature);
    m[j].inside = false
  }
  failsX = runsX && signatures == 3; runsX = runsX && signatures != 3;
  entered = 0; epoch = (epoch + 1) % 4; j = 0; signatures = 0
}

/* What is agreed runs first: an error fails only what then still waits. */
inline apply() {
  if
  :: runsS ->
     t = m[i].agreed; m[i].agreed++; s = m[i].step; m[i].whose[t] = s;
     j = m[i].buckets; m[i].buckets = 0;
     if :: j & 1 -> begin(t, 0, s) :: else fi;
     if :: j & 2 -> begin(t, 1, s) :: else fi
  :: else
  fi;
  if
  :: runsX -> m[i].x = false; finish(X, true)
  :: failsX ->
     s = m[i].done[X]; m[i].ended = m[i].ended | (1 << s); m[i].x = false; finish(X, false);
     if
     :: m[i].buckets && m[i].step == s ->
        if :: m[i].buckets & 1 -> finish(0, false) :: else fi;
        if :: m[i].buckets & 2 -> finish(1, false) :: else fi;
        m[i].buckets = 0
     :: else
     fi;
#ifdef STOP_AT_ONCE
     for (t : 0 .. K - 1) { stop = stop || (m[i].whose[t] == s && (LACKS(t, 0) || LACKS(t, 1))) }
#endif
  :: else
  fi;
  seen[i] = epoch; s = 0; t = 0; j = 0
}

proctype Engine(byte i) {
  byte s, t, j, slot;
end:
  do
  :: d_step {
       !stop && !m[i].inside && seen[i] == epoch && (m[i].x || m[i].buckets) && (m[i].fresh || HEARD) ->
       m[i].fresh = false; recordX[i] = m[i].x; recordS[i] = (m[i].buckets > 0);
       m[i].inside = true; entered++ }
  :: d_step { entered == N && m[i].inside -> decide() }
  :: d_step { !stop && seen[i] != epoch -> apply() }
  :: d_step { !stop && m[i].agreed > 0 && ARRIVED(0, 0) -> arrive(0, 0) }
  :: d_step { !stop && m[i].agreed > 0 && ARRIVED(0, 1) -> arrive(0, 1) }
#if K > 1
  :: d_step { !stop && m[i].agreed > 1 && ARRIVED(1, 0) -> arrive(1, 0) }
  :: d_step { !stop && m[i].agreed > 1 && ARRIVED(1, 1) -> arrive(1, 1) }
#endif
#if K > 2
  :: d_step { !stop && m[i].agreed > 2 && ARRIVED(2, 0) -> arrive(2, 0) }
  :: d_step { !stop && m[i].agreed > 2 && ARRIVED(2, 1) -> arrive(2, 1) }
#endif
  od
}

proctype Monitor() {
  byte i, o;
  timeout;
  if
  :: stop
  :: else ->
     for (i : 0 .. N - 1) {
       assert(!m[i].inside);
       for (o : 0 .. 2) { assert(m[i].done[o] == K && m[i].ran[o] == m[0].ran[o]) }
     }
  fi
}

init {
  byte k;
  atomic { for (k : 0 .. N - 1) { run App(k); run Engine(k) } run Monitor() }
}

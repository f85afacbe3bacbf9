/* Joining. N members submit up to K instances of each of B names and join R times, whenever nothing of their
   own is pending; after a join they go on. A member that has joined answers every vote and takes no part in
   what runs; when all have joined, nobody is joined any more.

   Checked: what runs is pending on all members that had not joined when they entered the vote, on one at
   least, and on none that had, and is the same instance everywhere; a join ends when all have joined, at the
   same vote on all, and the last is one that had not joined before; at quiescence all have joined R times.
   Abstracted: as in names.pml. One signature, and all names are in the plan.
   Wrong variants: AND_ONLY, NO_ANSWER, JOIN_BUSY, JOIN_SILENT. */
#ifndef N
#define N 2
#endif
#ifndef B
#define B 1
#endif
#ifndef K
#define K 2
#endif
#ifndef R
#define R 2
#endif

typedef Name { byte number; bool pending }      /* of the instance: also those that ran without this member */
typedef Member { Name name[B]; byte joins; bool joined, fresh, inside }
typedef Record { bool ready[B]; bool joined }
Member m[N];
Record record[N];                               /* what each member voted with */
/* changes only when a vote completes, and all members are in it then */
bool runs[B], ends, had_joined[N];
byte entered, epoch, seen[N];                   /* members inside; votes completed, modulo 4 */

/* Whose message reaches whom first, in recursive doubling */
#if N == 2
#define HEARD m[1 - i].inside
#else
#define HEARD ((i != 0 && m[0].inside) || (i == 0 && (m[1].inside || m[2].inside)))
#endif
#define PENDING (m[i].name[0].pending || m[i].name[B - 1].pending)
#ifdef NO_ANSWER
#define ANSWERS PENDING                         /* wrong: the others wait for it */
#else
#define ANSWERS (PENDING || m[i].joined)
#endif
#ifdef JOIN_BUSY
#define MAY_JOIN true                           /* wrong: the others may have begun what it leaves */
#else
#define MAY_JOIN !PENDING
#endif
#define GOES_ON (m[i].joins < R && !m[i].joined)

inline submit(b_) {
  d_step { assert(!m[i].name[b_].pending); m[i].name[b_].pending = true; m[i].fresh = true }
}
#define IDLE(b) (GOES_ON && m[i].name[b].number < K && !m[i].name[b].pending)

proctype App(byte i) {
end:
  do
  :: atomic { IDLE(0) -> submit(0) }
#if B > 1
  :: atomic { IDLE(1) -> submit(1) }
#endif
  :: atomic { GOES_ON && MAY_JOIN -> m[i].joined = true;
#ifndef JOIN_SILENT                             /* wrong without: nobody hears of the last one */
              m[i].fresh = true
#endif
            }
  od
}

inline decide() {
  ends = true;
  for (j : 0 .. N - 1) { ends = ends && record[j].joined }
  for (b : 0 .. B - 1) {
    all = true; some = false;
    for (j : 0 .. N - 1) {
      all = all && (record[j].ready[b] || record[j].joined); some = some || record[j].ready[b]
    }
#ifdef AND_ONLY
    runs[b] = all                               /* wrong: with all joined, everything */
#else
    runs[b] = all && some
#endif
  }
}

inline check() {
  for (b : 0 .. B - 1) {
    some = false;
    for (j : 0 .. N - 1) {
      assert(!runs[b] || m[j].name[b].pending == !record[j].joined);
      assert(!runs[b] || m[j].name[b].number == m[0].name[b].number);
      some = some || !record[j].joined
    }
    assert(!runs[b] || some)
  }
  all = false;
  for (j : 0 .. N - 1) {
    assert(!ends || m[j].joined);
    all = all || (record[j].joined && !had_joined[j]);
    had_joined[j] = record[j].joined && !ends
  }
  assert(!ends || all)
}

proctype Engine(byte i) {
  byte b, j; bool all, some;
end:
  do
  :: ANSWERS && (m[i].fresh || HEARD) ->
     m[i].fresh = false;
     d_step {
       for (b : 0 .. B - 1) { record[i].ready[b] = m[i].name[b].pending }
       record[i].joined = m[i].joined; m[i].inside = true; entered++; b = 0
     }
     if
     :: atomic {
          entered == N && epoch == seen[i] ->
          decide(); check();
          for (j : 0 .. N - 1) { m[j].inside = false }
          entered = 0; epoch = (epoch + 1) % 4; b = 0; j = 0; all = 0; some = 0
        }
     :: epoch != seen[i]
     fi;
     d_step {
       for (b : 0 .. B - 1) {
         if :: runs[b] -> m[i].name[b].pending = false; m[i].name[b].number++ :: else fi
       }
       if :: ends -> m[i].joined = false; m[i].joins++ :: else fi;
       seen[i] = epoch; b = 0
     }
  od
}

proctype Monitor() {
  byte k, b;
  timeout;
  for (k : 0 .. N - 1) {
    assert(!m[k].inside && !m[k].joined && m[k].joins == R);
    for (b : 0 .. B - 1) { assert(!m[k].name[b].pending && m[k].name[b].number == m[0].name[b].number) }
  }
}

init {
  byte k;
  atomic { for (k : 0 .. N - 1) { run App(k); run Engine(k) } run Monitor() }
}

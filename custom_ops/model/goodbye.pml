/* Parting, before a communicator is freed. N members write letters to each other at any time; member 0 parts
   at some time, the others go on (ALL_PART: they part too). Who parts says goodbye to all, and who hears a goodbye answers with
   its own; after it, it writes to that member no more. Who parts frees its communicator when all have said
   goodbye to it. MPI may give its number to the next one, in which a letter that comes late would be read.

   Checked: when a member frees, nothing is under way to it, and nothing is sent to it any more; whoever parts
   does free.
   Abstracted: letters carry nothing; one FIFO for each ordered pair of members; a member that fails.
   Wrong variants: FREE_EARLY, LATE_LETTER, NO_ECHO. */
#ifndef N
#define N 3
#endif
#ifndef K
#define K 2                                     /* letters of each member to each other one */
#endif

mtype = { letter, goodbye };
typedef Member { bool told[N], heard[N], parting, freed; byte letters[N] }
Member m[N];
chan wire[N * N] = [K + 1] of { mtype };
#define TO(j) wire[i * N + (j)]
#define FROM(j) wire[(j) * N + i]
#define HEARD(j) (i == j || m[i].heard[j])
#ifdef FREE_EARLY                               /* wrong: its own goodbye is no answer */
#define MAY_FREE true
#elif N == 2
#define MAY_FREE (HEARD(0) && HEARD(1))
#else
#define MAY_FREE (HEARD(0) && HEARD(1) && HEARD(2))
#endif
#ifdef LATE_LETTER                              /* wrong: as long as it has not parted itself */
#define MAY_WRITE(j) (i != j && !m[i].parting && m[i].letters[j] < K)
#else
#define MAY_WRITE(j) (i != j && !m[i].told[j] && m[i].letters[j] < K)
#endif

inline send(j, what) { assert(!m[j].freed); TO(j)!what }
inline part_from(j) { if :: i == j || m[i].told[j] :: else -> send(j, goodbye); m[i].told[j] = true fi }

inline receive(j) {
  if
  :: FROM(j)?[letter] -> FROM(j)?letter
  :: else ->
     FROM(j)?goodbye; m[i].heard[j] = true;
#ifndef NO_ECHO                                 /* wrong without: one that goes on never says it */
     part_from(j)
#endif
  fi
}
#define ARRIVED(j) (!m[i].freed && len(FROM(j)) > 0)

#ifdef ALL_PART
#define PARTS true
#else
#define PARTS (i == 0)
#endif

proctype Watchdog(byte i) {
  byte j;
end:
  do
  :: d_step { MAY_WRITE(0) -> send(0, letter); m[i].letters[0]++ }
  :: d_step { MAY_WRITE(1) -> send(1, letter); m[i].letters[1]++ }
  :: d_step { ARRIVED(0) -> receive(0) }
  :: d_step { ARRIVED(1) -> receive(1) }
#if N > 2
  :: d_step { MAY_WRITE(2) -> send(2, letter); m[i].letters[2]++ }
  :: d_step { ARRIVED(2) -> receive(2) }
#endif
  :: d_step { !m[i].parting && PARTS -> m[i].parting = true; for (j : 0 .. N - 1) { part_from(j) } j = 0 }
  :: d_step {
       m[i].parting && !m[i].freed && MAY_FREE ->
       m[i].freed = true;
       for (j : 0 .. N - 1) { assert(len(FROM(j)) == 0) }
       j = 0
     }
  od
}

proctype Monitor() {
  byte k;
  timeout;
  for (k : 0 .. N - 1) { assert(m[k].freed || !m[k].parting) }
  assert(m[0].freed)
}

init {
  byte k;
  atomic { for (k : 0 .. N - 1) { run Watchdog(k) } run Monitor() }
}

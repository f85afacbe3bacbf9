/* Opening and holding votes: when a member enters, and that no wake-up is lost while messages are delayed.
   N members submit the same R requests, each in any order and at any time; a request runs when it is ready
   on all.

   Checked: at quiescence everything has run everywhere, no pending request, no message and no member is
   left in a vote; all leave a vote with the AND and OR of what all put in; nothing runs that a member has
   not submitted; at most N x R votes.
   Abstracted: inbox and engine thread are one step (draining only delays a submit); names are indices,
   signatures equal; running is instant; with ENTRY_IN_ONE_STEP no submit falls between clearing fresh and
   reading ready (N = 4 needs that).
   Wrong variants: LATE_CLEAR, NO_NOTICE, ONE_OPENER (N >= 3), EARLY_ROUND (N = 3). */
#ifndef N
#define N 3
#endif
#ifndef R
#define R 2
#endif
#include "vote.inc"
#define EVERYTHING ((1 << R) - 1)

byte pending[N], submitted[N], ran[N];
bool fresh[N];

inline submit(bit_) {
  submitted[i] = submitted[i] | bit_; pending[i] = pending[i] | bit_; fresh[i] = true
}

proctype App(byte i) {
  do
  :: atomic { !(submitted[i] & 1) -> submit(1) }
#if R > 1
  :: atomic { !(submitted[i] & 2) -> submit(2) }
#endif
#if R > 2
  :: atomic { !(submitted[i] & 4) -> submit(4) }
#endif
  :: submitted[i] == EVERYTHING -> break
  od
}

#ifdef NO_NOTICE
#define MAY_ENTER (fresh[i] && pending[i])            /* wrong: an open vote is nobody's reason to enter */
#elif defined(ONE_OPENER)
#define MAY_ENTER (fresh[i] && pending[i] && (i == 0 || HEARD))   /* wrong: only rank 0 opens votes */
#else
#define MAY_ENTER (pending[i] && (fresh[i] || HEARD))
#endif

proctype Engine(byte i) {
  byte all, some, leaver, k, a, o, l;
  do
  :: MAY_ENTER ->
#ifdef LATE_CLEAR
     all = pending[i]; fresh[i] = false;              /* wrong: forgets what came between the two */
#elif defined(ENTRY_IN_ONE_STEP)
     d_step { fresh[i] = false; all = pending[i] }
#else
     fresh[i] = false; all = pending[i];
#endif
     atomic { some = all; leaver = NOBODY; vote() }
     d_step {
       assert(finished[i] <= N * R);
       for (k : 0 .. N - 1) { assert((submitted[k] & all) == all) }
       assert((pending[i] & all) == all);
       ran[i] = ran[i] | all; pending[i] = pending[i] & ~all;
       all = 0; some = 0; leaver = 0; k = 0
     }
  od
}

proctype Monitor() {
  byte k;
  timeout;
  for (k : 0 .. N - 1) { assert(ran[k] == EVERYTHING && pending[k] == 0 && !inside[k]) }
  for (k : 0 .. N * N - 1) { assert(len(wire[k]) == 0) }
}

init {
  byte k;
  atomic { for (k : 0 .. N - 1) { run App(k); run Engine(k) } run Monitor() }
}

/* Leaving. Each of N members submits any of R requests, in any order, and some members (any but none;
   ALL_LEAVE: each) ask to leave at any time, also in the middle of a vote. The vote whose outcome carries
   the flag closes the set: what is ready on all has run, all else that waits fails, later submits are
   refused. A member answers a vote about leaving with nothing pending. A leaver whose record is already in
   a vote cannot add the flag; so it also tells all peers outside of the votes, which lets one with nothing
   pending answer that vote.

   Checked: at quiescence all are closed, nothing pending, no member or message is left in a vote; the same
   requests have run on all, and only where submitted; all name the same leaver; at most N x R + 2 votes.
   Abstracted: as in votes.pml; the notice outside of the votes is a flag that each peer sees some time
   later; time limits.
   Wrong variants: NO_ANSWER, CLOSE_EARLY, NO_REFUSAL, and VOTES_ONLY unless ALL_LEAVE (which passes: a
   plain end of the job needs no notice outside of the votes). */
#ifndef N
#define N 2
#endif
#ifndef R
#define R 2
#endif
#include "vote.inc"
#define EVERYTHING ((1 << R) - 1)

byte pending[N], submitted[N], ran[N], failed[N], departed[N];
bool fresh[N], leaving[N], noticed[N], closed[N];
bool anyone;

inline submit(bit_) {
  submitted[i] = submitted[i] | bit_;
  if
#ifndef NO_REFUSAL
  :: closed[i] -> failed[i] = failed[i] | bit_
#endif
  :: else -> pending[i] = pending[i] | bit_; fresh[i] = true
  fi
}

proctype App(byte i) {
  do
  :: atomic { !(submitted[i] & 1) -> submit(1) }
#if R > 1
  :: atomic { !(submitted[i] & 2) -> submit(2) }
#endif
  :: atomic { !leaving[i] -> leaving[i] = true; anyone = true }
#ifdef ALL_LEAVE
  :: leaving[i] -> break
#else
  :: leaving[i] || i > 0 || anyone -> break        /* may never leave, but somebody does */
#endif
  od
}

#define LEAVER_FROM(j) (FROM(j)?[_, _, 0] || FROM(j)?[_, _, 1] || FROM(j)?[_, _, 2] || FROM(j)?[_, _, 3])
#if N == 2
#define HEARD_LEAVER LEAVER_FROM(1 - i)
#elif N == 3
#define HEARD_LEAVER (LEAVER_FROM(0) || LEAVER_FROM(1) || LEAVER_FROM(2))
#else
#define HEARD_LEAVER (LEAVER_FROM(0) || LEAVER_FROM(1) || LEAVER_FROM(2) || LEAVER_FROM(3))
#endif
#ifdef NO_ANSWER
#define ANSWERS false  /* wrong: with nothing pending, a vote is not entered whatever it is about */
#elif defined(VOTES_ONLY)
#define ANSWERS HEARD_LEAVER  /* wrong: a vote that began before the leaver decided has no flag */
#else
#define ANSWERS (noticed[i] || HEARD_LEAVER)
#endif

proctype Engine(byte i) {
  byte all, some, leaver, k, a, o, l;
end:
  do
  :: anyone && !noticed[i] -> noticed[i] = true
#ifdef CLOSE_EARLY
  :: d_step { !closed[i] && ANSWERS && !leaving[i] ->      /* wrong: leaves its peers inside the vote */
       closed[i] = true; failed[i] = failed[i] | pending[i]; pending[i] = 0 }
#endif
  :: !closed[i] && (leaving[i] || ANSWERS || (pending[i] && (fresh[i] || HEARD))) ->
     atomic { fresh[i] = false; all = pending[i]; some = all; leaver = (leaving[i] -> i : NOBODY); vote() }
     d_step {
       assert(finished[i] <= N * R + 2);
       for (k : 0 .. N - 1) { assert((submitted[k] & all) == all) }
       ran[i] = ran[i] | all; pending[i] = pending[i] & ~all;
       if
       :: leaver != NOBODY ->
          closed[i] = true; departed[i] = leaver; failed[i] = failed[i] | pending[i]; pending[i] = 0
       :: else
       fi;
       all = 0; some = 0; leaver = 0; k = 0
     }
#ifdef NO_REFUSAL
  /* wrong: a submit after the end opens one more vote */
  :: atomic { closed[i] && pending[i] && fresh[i] ->
       fresh[i] = false; all = pending[i]; some = all; leaver = NOBODY; vote() }
#endif
  od
}

proctype Monitor() {
  byte k;
  timeout;
  for (k : 0 .. N - 1) {
    assert(closed[k] && !inside[k] && pending[k] == 0);
    assert((ran[k] | failed[k]) == submitted[k] && !(ran[k] & failed[k]));
    assert(ran[k] == ran[0] && departed[k] == departed[0] && leaving[departed[k]])
  }
  for (k : 0 .. N * N - 1) { assert(len(wire[k]) == 0) }
}

init {
  byte k;
  atomic { for (k : 0 .. N - 1) { run App(k); run Engine(k) } run Monitor() }
}

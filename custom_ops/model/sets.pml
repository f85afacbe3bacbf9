/* Overlapping process sets. S sets of two of M ranks: set s is {s, s + 1 modulo M}, so that 2 sets of 3 ranks
   share one, 3 sets are a ring, and 2 sets of 2 ranks have the same members. Each rank submits the same B
   names in each of its sets, in any order; each set has an engine and messages of its own on each member.
   With LEAVE each rank's program ends at any time and closes its sets one after the other, in any order:
   the peers have been told, and their engines answer the vote that closes a set.

   Checked: at quiescence everything has run, or all is closed and what has not run on both members has
   failed on who submitted it; nothing runs where it was not submitted; no member or message is left in a vote.
   Abstracted: votes of two members, one message each way (votes.pml has the others); as in shutdown.pml.
   Wrong variants: ONE_ENGINE, ONE_WIRE (M = 2), IN_TURN; with LEAVE NO_ANSWER. */
#ifndef M
#define M 3
#endif
#ifndef S
#define S 2
#endif
#ifndef B
#define B 2
#endif
#define ALL ((1 << B) - 1)
#define SEAT(s, place) ((s) * 2 + (place))      /* a member's place in a set */
#define SEATS (S * 2)
#define RANK(e) (((e) / 2 + (e) % 2) % M)
#define OTHER(e) ((e) ^ 1)

typedef Seat { byte pending, submitted, ran, failed; bool fresh, inside, leaving, told, closed }
Seat seat[SEATS];
#ifdef ONE_WIRE                                 /* wrong: the sets of two ranks share their messages */
chan wire[M] = [4] of { byte, bit, byte };      /* by receiver: what is ready, leaving, the set */
#define TO(e) wire[RANK(OTHER(e))]
#define FROM(e) wire[RANK(e)]
#else
chan wire[SEATS] = [2] of { byte, bit, byte };
#define TO(e) wire[e]
#define FROM(e) wire[OTHER(e)]
#endif
#define HEARD(e) (len(FROM(e)) > 0)

/* The seats of rank r; one of them may belong to no set. */
#define FIRST SEAT(r, 0)
#define SECOND SEAT((r + M - 1) % M, 1)
#ifdef IN_TURN                                  /* wrong: the program waits for each call before the next */
#define FREE(e) (e >= SEATS || seat[e].pending == 0)
#define MAY_GO_ON (FREE(FIRST) && FREE(SECOND))
#else
#define MAY_GO_ON true
#endif
#define MAY_SUBMIT(e, name) (e < SEATS && MAY_GO_ON && !(seat[e].submitted & name))
#define HAS_ALL(e) (e >= SEATS || seat[e].submitted == ALL)

inline submit(e, name) {
  seat[e].submitted = seat[e].submitted | name;
  if
  :: seat[e].closed -> seat[e].failed = seat[e].failed | name
  :: else -> seat[e].pending = seat[e].pending | name; seat[e].fresh = true
  fi
}

inline tell(e) { if :: e < SEATS -> seat[OTHER(e)].told = true :: else fi }
#define MAY_CLOSE(e) (e < SEATS && !seat[e].leaving)
#define CLOSED(e) (e >= SEATS || seat[e].closed)

proctype App(byte r) {
  do
  :: atomic { MAY_SUBMIT(FIRST, 1) -> submit(FIRST, 1) }
  :: atomic { MAY_SUBMIT(SECOND, 1) -> submit(SECOND, 1) }
#if B > 1
  :: atomic { MAY_SUBMIT(FIRST, 2) -> submit(FIRST, 2) }
  :: atomic { MAY_SUBMIT(SECOND, 2) -> submit(SECOND, 2) }
#endif
#ifdef LEAVE
  :: atomic { tell(FIRST); tell(SECOND); break }
  od;
  do
  :: MAY_CLOSE(FIRST) -> seat[FIRST].leaving = true; seat[FIRST].closed
  :: MAY_CLOSE(SECOND) -> seat[SECOND].leaving = true; seat[SECOND].closed
  :: CLOSED(FIRST) && CLOSED(SECOND) -> break
  od
#else
  :: HAS_ALL(FIRST) && HAS_ALL(SECOND) -> break
  od
#endif
}

#ifdef NO_ANSWER                                /* wrong: a member answers when its own program closes the set */
#define ANSWERS(e) false
#else
#define ANSWERS(e) seat[e].told
#endif
#define MAY_ENTER(e) (seat[e].leaving || ANSWERS(e) || (seat[e].pending && (seat[e].fresh || HEARD(e))))

#ifdef ONE_ENGINE                               /* wrong: a rank is in one vote at a time */
bool busy[M];
#define ENTERS(e) (!busy[RANK(e)] && MAY_ENTER(e))
#define BUSY(e, value) busy[RANK(e)] = value
#else
#define ENTERS(e) MAY_ENTER(e)
#define BUSY(e, value) skip
#endif

proctype Engine(byte e) {
  byte mine, theirs, set; bit leaver, peer_leaves;
end:
  do
  :: d_step {
       !seat[e].closed && ENTERS(e) ->
       BUSY(e, true); seat[e].fresh = false; seat[e].inside = true;
       mine = seat[e].pending; leaver = seat[e].leaving;
       assert(nfull(TO(e))); TO(e)!mine, leaver, e / 2
     }
     d_step {
       HEARD(e) ->
       FROM(e)?theirs, peer_leaves, set;
       assert(set == e / 2);
       mine = mine & theirs;
       assert((seat[e].pending & mine) == mine && (seat[OTHER(e)].submitted & mine) == mine);
       seat[e].ran = seat[e].ran | mine; seat[e].pending = seat[e].pending & ~mine;
       if
       :: leaver || peer_leaves ->
          seat[e].closed = true; seat[e].failed = seat[e].failed | seat[e].pending; seat[e].pending = 0
       :: else
       fi;
       seat[e].inside = false; BUSY(e, false); mine = 0; theirs = 0; set = 0; leaver = 0; peer_leaves = 0
     }
  od
}

proctype Monitor() {
  byte e;
  timeout;
  for (e : 0 .. SEATS - 1) {
    assert(!seat[e].inside && seat[e].pending == 0 && len(FROM(e)) == 0);
    assert((seat[e].ran | seat[e].failed) == seat[e].submitted && !(seat[e].ran & seat[e].failed));
    assert(seat[e].ran == seat[OTHER(e)].ran);
#ifdef LEAVE
    assert(seat[e].closed)
#else
    assert(seat[e].ran == ALL && seat[e].failed == 0)
#endif
  }
}

init {
  byte k;
  atomic {
    for (k : 0 .. M - 1) { run App(k) }
    for (k : 0 .. SEATS - 1) { run Engine(k) }
    run Monitor()
  }
}

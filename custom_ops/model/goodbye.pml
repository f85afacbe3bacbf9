/* How the watchdogs disconnect, before a communicator is freed. N members send messages to each other at any
   time. Member 0 disconnects at some time; the others go on (ALL_DISCONNECT: they disconnect too). A member that
   disconnects sends a goodbye to all. A member that receives a goodbye answers with its own, and sends nothing
   more to that member. A member frees its communicator once it has a goodbye of every other member. MPI may give
   the communicator's number to the next one, which would receive a late message.

   Checked: when a member frees, no message is under way to it, and none is sent to it afterwards; every member
   that disconnects frees.
   Abstracted: messages are empty; one FIFO for each ordered pair of members; no member fails.
   Wrong variants: FREE_EARLY, LATE_MESSAGE, NO_ECHO. */
#ifndef N
#define N 3
#endif
#ifndef K
#define K 2                                     /* messages of each member to each other one */
#endif

mtype = { message, goodbye };
typedef Member { bool goodbye_sent[N], goodbye_received[N], disconnecting, freed; byte sent[N] }
Member m[N];
chan wire[N * N] = [K + 1] of { mtype };
#define TO(j) wire[i * N + (j)]
#define FROM(j) wire[(j) * N + i]
#define RECEIVED(j) (i == j || m[i].goodbye_received[j])
#ifdef FREE_EARLY                               /* wrong: its own goodbye is no answer */
#define MAY_FREE true
#elif N == 2
#define MAY_FREE (RECEIVED(0) && RECEIVED(1))
#else
#define MAY_FREE (RECEIVED(0) && RECEIVED(1) && RECEIVED(2))
#endif
#ifdef LATE_MESSAGE                             /* wrong: until it disconnects itself */
#define MAY_SEND(j) (i != j && !m[i].disconnecting && m[i].sent[j] < K)
#else
#define MAY_SEND(j) (i != j && !m[i].goodbye_sent[j] && m[i].sent[j] < K)
#endif

inline send(j, type) { assert(!m[j].freed); TO(j)!type }
inline send_goodbye(j) {
  if :: i == j || m[i].goodbye_sent[j] :: else -> send(j, goodbye); m[i].goodbye_sent[j] = true fi
}

inline receive(j) {
  if
  :: FROM(j)?[message] -> FROM(j)?message
  :: else ->
     FROM(j)?goodbye; m[i].goodbye_received[j] = true;
#ifndef NO_ECHO                                 /* wrong without: a member that goes on sends none */
     send_goodbye(j)
#endif
  fi
}
#define ARRIVED(j) (!m[i].freed && len(FROM(j)) > 0)

#ifdef ALL_DISCONNECT
#define DISCONNECTS true
#else
#define DISCONNECTS (i == 0)
#endif

proctype Watchdog(byte i) {
  byte j;
end:
  do
  :: d_step { MAY_SEND(0) -> send(0, message); m[i].sent[0]++ }
  :: d_step { MAY_SEND(1) -> send(1, message); m[i].sent[1]++ }
  :: d_step { ARRIVED(0) -> receive(0) }
  :: d_step { ARRIVED(1) -> receive(1) }
#if N > 2
  :: d_step { MAY_SEND(2) -> send(2, message); m[i].sent[2]++ }
  :: d_step { ARRIVED(2) -> receive(2) }
#endif
  :: d_step {
       !m[i].disconnecting && DISCONNECTS ->
       m[i].disconnecting = true;
       for (j : 0 .. N - 1) { send_goodbye(j) }
       j = 0
     }
  :: d_step {
       m[i].disconnecting && !m[i].freed && MAY_FREE ->
       m[i].freed = true;
       for (j : 0 .. N - 1) { assert(len(FROM(j)) == 0) }
       j = 0
     }
  od
}

proctype Monitor() {
  byte k;
  timeout;
  for (k : 0 .. N - 1) { assert(m[k].freed || !m[k].disconnecting) }
  assert(m[0].freed)
}

init {
  byte k;
  atomic { for (k : 0 .. N - 1) { run Watchdog(k) } run Monitor() }
}

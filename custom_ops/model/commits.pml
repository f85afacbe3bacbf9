/* Where an elastic job goes on from. Each of H hosts keeps the newest commit in its memory. A commit is written by
   each host of a start for itself; a host begins commit n + 1 only when all hosts of the start have written n, since
   the steps between them need all. At any time a rank is lost, or a host with its memory. Then the job starts again
   on any hosts that are up, if at least one of them has run the last start; others are asked first, and lose commits
   that they have from before. All take the newest commit, and a host that has an older one, or none, writes it.

   Checked: hosts with a commit of the same number have the same one; no start goes back behind a commit that all
   hosts of the start before held.
   Abstracted: a file appears whole; a commit is its number and the start that made it; no disk.
   Wrong variants: KEEP_OLD, NO_COPY, ANY_HOSTS. */
#ifndef H
#define H 3
#endif
#ifndef S
#define S 3                                     /* starts after the first one */
#endif
#ifndef K
#define K 2                                     /* commits in a start */
#endif

typedef Host { bool up, member, held; byte number, made_by }
Host h[H];
byte start, base, all_hold, newest, made_by;

inline find_newest() {
  newest = 0; made_by = 0;
  for (k : 0 .. H - 1) {
    if
    :: h[k].member && h[k].number > 0 && h[k].number == newest -> assert(h[k].made_by == made_by)
    :: h[k].member && h[k].number > newest -> newest = h[k].number; made_by = h[k].made_by
    :: else
    fi
  }
}

inline restore() {
  find_newest();
  assert(newest >= all_hold);
  base = newest; all_hold = newest;
  for (k : 0 .. H - 1) {
    h[k].held = h[k].member;
#ifndef NO_COPY                                 /* wrong without: a new host has nothing until the next commit */
    if :: h[k].member && newest > 0 -> h[k].number = newest; h[k].made_by = made_by :: else fi
#endif
  }
}

/* Whether host i may write its next commit: no other host of the start is behind it. */
inline write(i) {
  may = h[i].member && h[i].up && (h[i].number < base + K || h[i].number < base);
  for (k : 0 .. H - 1) {
    may = may && (!h[k].member || !h[k].up || h[k].number >= h[i].number || h[k].number >= base + K)
  }
  if
  :: may ->
     h[i].number = (h[i].number < base -> base + 1 : h[i].number + 1);
     h[i].made_by = start;
     all_hold = 255;
     for (k : 0 .. H - 1) {
       if :: h[k].member && h[k].number < all_hold -> all_hold = h[k].number :: else fi
     }
     if :: all_hold < base -> all_hold = base :: else fi
  :: else
  fi
}

inline start_again() {
  start++;
  for (k : 0 .. H - 1) { if :: h[k].up -> chosen[k] = true :: h[k].up -> chosen[k] = false :: else -> chosen[k] = false fi }
  may = false;
  for (k : 0 .. H - 1) { may = may || (chosen[k] && h[k].held) }
#ifdef ANY_HOSTS                                /* wrong: hosts that have nothing of the last start may begin alone */
  for (k : 0 .. H - 1) { may = may || chosen[k] }
#endif
  if
  :: may ->
     for (k : 0 .. H - 1) {
#ifndef KEEP_OLD                                /* wrong without: commits from before meet later ones of their number */
       if :: chosen[k] && !h[k].held -> h[k].number = 0; h[k].made_by = 0 :: else fi;
#endif
       h[k].member = chosen[k]
     }
     restore()
  :: else -> ended = true
  fi
}

active proctype Job() {
  byte k;
  bool may, ended, chosen[H];
  d_step {
    for (k : 0 .. H - 1) { h[k].up = true; h[k].member = true; h[k].held = true }
    k = 0
  }
end:
  do
  :: ended || start == S -> break
  :: else ->
     if
     :: d_step { !ended -> write(0); k = 0 }
     :: d_step { !ended -> write(1); k = 0 }
#if H > 2
     :: d_step { !ended -> write(2); k = 0 }
#endif
     :: atomic { true -> start_again(); k = 0 }                       /* a rank is lost, or hosts come and go */
     :: atomic { h[0].up -> h[0].up = false; h[0].number = 0; h[0].made_by = 0; h[0].held = false; start_again(); k = 0 }
     :: atomic { h[1].up -> h[1].up = false; h[1].number = 0; h[1].made_by = 0; h[1].held = false; start_again(); k = 0 }
     :: atomic { !h[0].up -> h[0].up = true }                         /* it comes back, empty */
     :: atomic { !h[1].up -> h[1].up = true }
     fi
  od
}

/*
 * What an owner learns of the sessions that were claimed from it (docs/adr/0006-ownership.md), for SPIN.
 *
 * Two sessions share the lease of their owner and its list of losses in the store. A transition is one atomic step of
 * a replica or of the store, and has the name of the function that does it. A flag such as -DREAD_IS_HANDLED seeds a
 * mutant; test_model.py runs them.
 *
 * The owner is cut off from the claimant, which therefore claims on grounds of its lease alone. Left out: what
 * ownership.pml has of one session, calls among it.
 */

#define SESSIONS 2
#define NOBODY 2
#define OWNER 0
#define CLAIMANT 1
#ifndef CLAIMS
#define CLAIMS 3
#endif
#ifndef FAULTS
#define FAULTS 2         /* lost answers to renewals */
#endif

/* -- the store */

byte owner[SESSIONS];    /* of each session */
byte lost[SESSIONS];     /* how often the list has the session */
bool is_young;           /* the owner's lease, for DOUBT_S */

/* -- what the owner has in memory */

bool is_trusted;         /* OwnLease.is_fresh: it answers without a question to the store */
bool is_live[SESSIONS] = true;
bool is_late;            /* the renewal on its way was asked for so long ago that its lease is old */
bool taken[SESSIONS];    /* what the answer to the renewal says */
bool handled[SESSIONS];  /* what the next renewal says */

/* -- what the claimant has */

bool serves[SESSIONS];

byte claims = CLAIMS, faults = FAULTS;

#define check assert(!(is_trusted && is_live[0] && serves[0]) && !(is_trusted && is_live[1] && serves[1]))

inline entry(s) { /* beat.lua */
    lost[s] = (handled[s] && lost[s] -> lost[s] - 1 : lost[s]);
    taken[s] = lost[s] > 0;
#ifdef READ_IS_HANDLED
    lost[s] = 0;
#endif
}

inline close_taken(s) { /* Cluster._close_taken */
    if
    :: atomic { taken[s] -> is_live[s] = is_live[s] && owner[s] == OWNER } /* Cluster._has_claimed_again, Cluster.lose */
    :: !taken[s]
    fi
}

active proctype Owner() {
end:
    do
    :: atomic { is_late = false; is_young = true; entry(0); entry(1) } /* Cluster.beat */
        if
        :: atomic { faults > 0 -> faults--; taken[0] = false; taken[1] = false; /* the answer is lost */
#ifndef HANDLED_TWICE
            handled[0] = false; handled[1] = false
#endif
            }
        :: atomic { taken[0] || taken[1] ->
#ifdef RENEWED_FIRST
            is_trusted = is_trusted || !is_late;
#endif
            handled[0] = false; handled[1] = false }
            close_taken(0);
            close_taken(1);
            atomic { handled[0] = taken[0]; handled[1] = taken[1]; taken[0] = false; taken[1] = false; check }
        :: atomic { !taken[0] && !taken[1] -> /* OwnLease.renewed */
            handled[0] = false; handled[1] = false; is_trusted = is_trusted || !is_late; check }
        fi
    od
}

proctype Reclaims(byte s) { /* Cluster.claim, by the owner, of a session that the claimant has released */
end:
    do
    :: atomic { owner[s] == NOBODY && claims > 0 -> claims--;
        owner[s] = OWNER; is_live[s] = true;
        check }
    od
}

proctype Claimant(byte s) {
end:
    do
    :: atomic { owner[s] == OWNER && !is_young && claims > 0 -> claims-- } /* PeerRequests.greet_owner */
        atomic { /* Cluster.claim: the lease may be renewed meanwhile */
            if
            :: owner[s] == OWNER -> owner[s] = CLAIMANT; lost[s]++
            :: else
            fi }
        if
        :: atomic { owner[s] == CLAIMANT && (!lost[s] || !is_young) -> /* Cluster._answers_none */
            serves[s] = true; check }
        fi;
        atomic { serves[s] -> serves[s] = false; owner[s] = NOBODY } /* SessionLifecycle.release_idle */
    od
}

active proctype Time() {
end:
    do
    :: atomic { is_trusted -> is_trusted = false } /* TRUST_S */
    :: atomic { !is_trusted && is_young -> is_young = false; is_late = true } /* DOUBT_S, which is longer */
    od
}

init { atomic { run Claimant(0); run Claimant(1); run Reclaims(0); run Reclaims(1) } }

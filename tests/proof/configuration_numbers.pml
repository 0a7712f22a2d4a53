/*
 * The configuration numbers of three replicas (docs/adr/0044-configuration-numbers.md), for SPIN.
 *
 * A transition is one atomic step of a replica or of the store, and has the name of the function that does it. A flag
 * such as -DNOT_ASKED seeds a mutant; test_model.py runs them.
 *
 * One session stands for all: it is claimed when it has no owner, or when its owner is not reached. Left out: who owns
 * a session while two replicas take it (ownership.pml), numbers of more than two files, and two renewals of one replica
 * that are on their way at the same time.
 */

#define REPLICAS 3
#define NOBODY REPLICAS
#ifndef CHANGES
#define CHANGES 2        /* of files: edits and restarts */
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef NUMBERS
#define NUMBERS 4        /* the greatest number */
#endif

/* -- the store: hold_configuration.lua */

byte numbers[2];         /* of both files; 0: it knows no such file */
byte held[REPLICAS];     /* the number that a replica holds */
byte left;               /* the greatest number of those that have died, until their hold ends */
byte owner = NOBODY;     /* of the session */

/* -- what a replica has in memory */

bool runs[REPLICAS] = true;
bool file[REPLICAS];
bool is_edited[REPLICAS];
byte own[REPLICAS], newest[REPLICAS];
bool is_leaving[REPLICAS];
bool may_claim[REPLICAS];        /* it has asked the store, and is about to claim */

/* -- what is checked */

byte changes = CHANGES, faults = FAULTS;
bool untold[REPLICAS];   /* a failover has lost the numbers of replicas, which tell them again */
bool overtaken[REPLICAS];        /* between its question and its claim: a newer file was told, or a failover */

#define max(a, b) ((a) > (b) -> (a) : (b))
#define last_number max(numbers[0], numbers[1])
#define is_outdated(r) (own[r] < newest[r])
#define has_newer(q, r) (runs[q] && held[q] > own[r])
#define differ(p, q) (!runs[p] || !runs[q] || !held[p] || held[p] != held[q] || own[p] != held[p] || \
    own[q] != held[q] || file[p] == file[q] || is_edited[p] || is_edited[q])

inline renew(r, p, q, holds) { /* ConfigurationNumber.renew; hold_configuration.lua */
    others = max(max(held[p], held[q]), left);
    last = max(max(own[r], numbers[0]), numbers[1]);
    known = numbers[file[r]];
    if
    :: known &&
#ifndef EDITS_FORGOTTEN
        !(is_edited[r] && own[r] >= others) &&
#endif
        true -> number = known
    :: !known && own[r] && !is_edited[r] && /* the store has lost it */
        numbers[!file[r]] != own[r] -> number = own[r]
    :: else -> number = last + 1
    fi;
    held[r] = (holds -> number : 0);
    if
    :: holds ->
        assert(!(is_edited[r] && own[r] >= others) || number > others); /* an edit of the newest file is the newest */
        numbers[file[r]] = number; own[r] = number; newest[r] = max(others, number);
        is_edited[r] = false; untold[r] = false;
        assert(differ(r, p) && differ(r, q)) /* no number is of two files */
    :: !holds ->
        own[r] = (number <= others -> number : own[r]); newest[r] = others
    fi;
    overtaken[p] = overtaken[p] || (may_claim[p] && held[r] > own[p]);
    overtaken[q] = overtaken[q] || (may_claim[q] && held[r] > own[q]);
    number = 0; others = 0; last = 0; known = 0
}

proctype Replica(byte r; byte p; byte q) {
    byte others, last, known, number;
end:
    do
    :: atomic { runs[r] && last_number < NUMBERS -> /* Cluster.beat */
#ifdef LEAVES_UNASKED
        if
        :: is_leaving[r] -> held[r] = 0
        :: else ->
            renew(r, p, q, true)
        fi }
#else
        renew(r, p, q, !is_leaving[r]) }
#endif
    :: atomic { runs[r] && last_number < NUMBERS && owner != r && !may_claim[r] -> /* Cluster.may_claim */
#ifdef LEAVES_UNASKED
        if
        :: is_leaving[r]
        :: else ->
            renew(r, p, q, true)
        fi;
#else
#ifndef NOT_ASKED
        renew(r, p, q, !is_leaving[r]);
#endif
#endif
        may_claim[r] = own[r] && !is_outdated(r); overtaken[r] = false }
    :: atomic { runs[r] && may_claim[r] -> /* Cluster.ensure_owner, Cluster.claim_from_owner */
        may_claim[r] = false; owner = r;
        assert(overtaken[r] || untold[0] || untold[1] || untold[2] || /* no other one has a newer file, or had it */
            (!has_newer(p, r) && !has_newer(q, r) && left <= own[r])) }
    :: atomic { runs[r] && may_claim[r] -> may_claim[r] = false } /* another one has claimed it */
    :: atomic { runs[r] && changes > 0 && !may_claim[r] -> changes--; /* Reload, ConfigurationNumber.use */
        file[r] = !file[r]; is_edited[r] = is_edited[r] || own[r] }
    :: atomic { runs[r] && !is_leaving[r] && changes > 0 -> is_leaving[r] = true } /* or it is not reached */
    :: atomic { runs[r] && is_leaving[r] && changes > 0 -> changes--; is_leaving[r] = false }
    :: atomic { runs[r] && is_leaving[r] && owner == r -> owner = NOBODY } /* SessionLifecycle.release_idle */
    :: atomic { runs[r] && is_leaving[r] && owner != r && !may_claim[r] -> /* Cluster.leave */
        held[r] = 0; runs[r] = false;
        untold[r] = false }
    :: atomic { runs[r] && faults > 0 -> faults--; left = max(left, held[r]); held[r] = 0; runs[r] = false;
        untold[r] = false }
    :: atomic { !runs[r] && changes > 0 -> changes--; /* it starts, with another name and either file */
        if
        :: file[r] = 0
        :: file[r] = 1
        fi;
        runs[r] = true; own[r] = 0; newest[r] = 0; is_edited[r] = false; is_leaving[r] = false; may_claim[r] = false }
    od
}

proctype Store() {
end:
    do
    :: atomic { left -> left = 0 } /* _HOLD_S is over */
    :: atomic { faults > 0 -> faults--; /* a failover */
        untold[0] = runs[0]; untold[1] = runs[1]; untold[2] = runs[2];
        overtaken[0] = may_claim[0]; overtaken[1] = may_claim[1]; overtaken[2] = may_claim[2];
        numbers[0] = 0; numbers[1] = 0; held[0] = 0; held[1] = 0; held[2] = 0; left = 0 }
    od
}

init {
    atomic { run Replica(0, 1, 2); run Replica(1, 0, 2); run Replica(2, 0, 1); run Store() }
}

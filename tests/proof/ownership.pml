/*
 * The ownership of one session by one of three replicas (docs/adr/0006-ownership.md), for SPIN.
 *
 * A transition is one atomic step of a replica or of the store, and has the name of the function that does it. A flag
 * such as -DNO_FENCE seeds a mutant of the protocol; test_model.py has the bounds that find it.
 *
 * Sessions share only leases, so one session stands for all. Left out: the kernel, Redis itself, real time (only the
 * order TRUST_S < DOUBT_S < LEASE_S), a wrong address, clocks that stop, and what follows within a lease after a
 * failover that has forgotten a claim.
 */

#ifndef CALLS
#define CALLS 2          /* at the same time */
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef CLAIMS
#define CLAIMS 3
#endif
#ifndef KINDS
#define KINDS 127        /* of faults: the sum of those that may happen (all but JUMP) */
#endif
#define PAUSE 1
#define DEATH 2
#define CUT 4            /* between replicas */
#define OUTAGE 8         /* between a replica and the store */
#define DRAIN 16
#define FAILOVER 32      /* the store forgets a claim */
#define LOST_ANSWER 64   /* of the store, to a claim */
#define JUMP 128         /* of the store's clock, by a lease: not among those that the protocol withstands */
#define may(kind) (faults > 0 && (KINDS & kind))
#define REPLICAS 3
#define NOBODY REPLICAS
#ifndef OLDER
#define OLDER NOBODY     /* the replica with an older configuration file: it claims nothing (configuration_numbers.pml) */
#endif

/* -- the store: the session's record, the leases, the lists of lost sessions, and the record that its copy has */

#define VALID 0
#define OLD 1            /* not renewed for DOUBT_S */
#define EXPIRED 2        /* not renewed for LEASE_S, or ended */
byte owner = NOBODY;
byte epoch = 1;          /* numbered in the order of claims; the code's nonce shows no order */
byte lease[REPLICAS];
bool lost[REPLICAS];
byte copied_owner = NOBODY, copied_epoch = 1;

/* -- the world */

#define UP 0
#define PAUSED 1
#define STOPPED 2        /* paused for good: its address accepts connections */
#define DEAD 3           /* its address refuses connections */
byte process[REPLICAS];
byte cut[REPLICAS];      /* off from the other replicas: 1, for a while; 2, for good */
bool away[REPLICAS];     /* off from the store */
byte faults = FAULTS;

/* -- what a replica has in memory */

bool is_fresh[REPLICAS];         /* OwnLease.is_fresh: it trusts itself */
byte held[REPLICAS];             /* OwnLease.peers_agreed: 1, all others hold; 2, no longer */
bool doubted[REPLICAS];          /* OwnLease.treat_as_dead: another one treats it as dead */
byte live[REPLICAS];             /* the claim to which the live session and its processes belong; 0: none */
bool knows_loss[REPLICAS];       /* Cluster._lost */
byte formers[REPLICAS] = NOBODY; /* Cluster._formers: the owner from whom it has claimed the session */
bool has_told[REPLICAS];         /* _Former.until is set */
bool is_leaving[REPLICAS];
byte working[REPLICAS];          /* calls at its processes */
byte entered[REPLICAS];          /* calls whose clients are connected to it */

/* -- what is checked */

byte given = 1;                  /* the latest epoch */
byte latest;                     /* the latest claim in which a client was answered */
bool has_forgotten;              /* a failover has lost a claim: for a lease, two owners may not know of each other */
byte ended_calls;

#define runs(r) (process[r] == UP)
#define reaches(a, b) (a == b || (!cut[a] && !cut[b]))
#define hears(a, b) (runs(b) && reaches(a, b))
#define refuses(a, b) (process[b] == DEAD && reaches(a, b))
#define owns(r) (owner == r && epoch == live[r])
#define renews(r) (runs(r) && !away[r])

/* OwnLease.treat_as_dead */
#ifdef HOLD_IGNORED
#define may_doubt(r) (lease[r] == OLD)
#else
#define may_doubt(r) (lease[r] == OLD && held[r] != 1)
#endif

/* LiveSessions.of, after session_attaching._is_before has ended what is from before another owner */
#ifdef OLD_PROCESS
#define begin(r, claim) live[r] = (live[r] -> live[r] : claim)
#else
#define begin(r, claim) live[r] = claim
#endif

/* -- a replica's own life */

proctype Replica(byte r; byte p; byte q) {
end:
    do
    :: atomic { /* Cluster.beat */
        renews(r) && (!is_fresh[r] || lease[r] != VALID || lost[r]) ->
        lease[r] = VALID; is_fresh[r] = true; held[r] = 0; doubted[r] = false;
        if
        :: lost[r] && !owns(r) -> live[r] = 0; knows_loss[r] = true /* Cluster.lose, unless _has_claimed_again */
        :: else
        fi;
        lost[r] = false }
    :: atomic { /* LeaseRenewal._have_them_hold */
        runs(r) && away[r] && live[r] && lease[r] != EXPIRED && held[r] == 0 && hears(r, p) && hears(r, q) &&
#ifndef HELD_TOO_LATE
        !doubted[r] &&
#endif
        true -> held[r] = 1; is_fresh[r] = true }
    :: atomic { /* Cluster._until_no_other_serves: tell the former owner, if the claim has not done it */
        renews(r) && formers[r] != NOBODY && !has_told[r] -> lost[formers[r]] = true; has_told[r] = true }
    :: atomic { /* Cluster._answers_none */
        renews(r) && formers[r] != NOBODY && has_told[r] &&
        (!lost[formers[r]] || lease[formers[r]] == EXPIRED || may_doubt(formers[r])) ->
        if
        :: lost[formers[r]] && lease[formers[r]] == OLD -> doubted[formers[r]] = true
        :: else
        fi;
        formers[r] = NOBODY; has_told[r] = false }
    :: atomic { /* Reconciliation.compare; that it finds also other losses is not needed */
        has_forgotten && renews(r) && live[r] && !owns(r) -> live[r] = 0; knows_loss[r] = true }
      /* Time passes for who does not renew its lease: TRUST_S < DOUBT_S, HOLD_S < HOLD_S + _CLOCKS_S < LEASE_S. */
    :: atomic { !renews(r) && is_fresh[r] -> is_fresh[r] = false }
    :: atomic { !renews(r) && held[r] == 1 && !is_fresh[r] -> held[r] = 2 }
    :: atomic { !renews(r) && lease[r] == VALID &&
#ifndef TRUSTED_TOO_LONG
        (!is_fresh[r] || held[r] == 1) &&
#endif
        true -> lease[r] = OLD }
    :: atomic { !renews(r) && lease[r] == OLD && !is_fresh[r] && held[r] != 1 -> lease[r] = EXPIRED }
    od
}

/* -- a call of a tool that may not be repeated */

inline next_epoch() { /* session_store.ports.replica_directory.next_epoch: unique, also if a failover has forgotten claims */
    copied_owner = owner; copied_epoch = epoch;
#ifdef EPOCH_REUSED
    epoch++; assert(epoch > given); /* no epoch is given twice */
    given = epoch
#else
    given++; epoch = given
#endif
}

#define NOTHING 0        /* of the request is at another replica */
#define SENT 1           /* it has arrived, and may run at any moment */
#define WAITS 2          /* the asker was told so: frame n */
#define AGREED 3         /* the asker was asked, and has agreed: ForwardedPost.before_sending */
#define WORKS 4          /* it was sent to a server, by the owner's processes of the claim `began` */
#define may_have_run (stage == SENT || stage >= AGREED)

#ifdef NO_FENCE
#define may_answer(r) true
#else /* CallReply.is_doubtful, and Cluster.still_owns */
#define may_answer(r) (live[r] == began && ((is_fresh[r] && !knows_loss[r]) || (!away[r] && owns(r))))
#endif

#ifdef OTHERS_SERVE
#define is_free(r) true
#else /* Cluster.ensure_owner waits, too */
#define is_free(r) (formers[r] == NOBODY)
#endif

#define is_alone (by != entry && runs(entry) && !hears(entry, by)) /* whom it has asked is not reached */

proctype Call() {
    byte entry, to, read, began, stage, executed, faults_when_sent;
    byte by; /* who claims: the entry, or whom it has asked to */
    bool is_gone;

    atomic {
        if
        :: runs(0) && !is_leaving[0] -> entry = 0
        :: runs(1) && !is_leaving[1] -> entry = 1
        :: runs(2) && !is_leaving[2] -> entry = 2
        :: else -> goto over
        fi;
        entered[entry]++
    }
    {
        skip;
resolve: /* SessionResolver.resume, Cluster.ensure_owner */
        atomic {
            runs(entry);
            stage = NOTHING; is_gone = false; by = entry;
            if
            :: away[entry] && live[entry] && is_fresh[entry] -> to = entry; stage = SENT; goto sent /* serves_outage */
            :: away[entry] && !(live[entry] && is_fresh[entry]) -> goto ended /* 503 */
            :: else -> to = owner; read = epoch
            fi;
            if
            :: (is_leaving[entry] || (entry == OLDER && to == NOBODY)) && (to == entry || to == NOBODY) ->
                goto ended /* _hand_over */
            :: !(is_leaving[entry] || (entry == OLDER && to == NOBODY)) && (to == entry || to == NOBODY) -> goto own
            :: else -> goto forward
            fi
        }
own:
        atomic {
            runs(entry) && (away[entry] || to == NOBODY || is_free(entry) || owner != entry);
            if
            :: away[entry] || (is_leaving[entry] && !live[entry]) -> goto ended /* has_released: _hand_over */
            :: else
            fi;
            if
            :: to == NOBODY && epoch == read && owner == NOBODY && given <= CLAIMS -> /* claim.lua */
                next_epoch(); owner = entry; formers[entry] = NOBODY; has_told[entry] = false;
                knows_loss[entry] = false; begin(entry, epoch)
            :: to == NOBODY && epoch == read && owner == NOBODY && given > CLAIMS -> goto ended /* beyond the bounds */
            :: to == NOBODY && !(epoch == read && owner == NOBODY) -> goto resolve
            :: to == entry && !is_free(entry) -> goto resolve
            :: to == entry && is_free(entry) && read > live[entry] -> begin(entry, read)
            :: to == entry && is_free(entry) && read <= live[entry]
            fi;
            to = entry; stage = SENT; goto sent
        }
forward: /* PeerRequests.ask: an owner of which nothing was heard gets nothing */
        atomic {
            runs(entry);
            if
            :: refuses(entry, to) -> is_gone = true; goto take
            :: hears(entry, to) -> stage = SENT; faults_when_sent = faults
#ifdef NO_PROBE
            :: !refuses(entry, to) && !hears(entry, to) && !cut[entry] && !cut[to] ->
                stage = SENT; faults_when_sent = faults
#endif
            :: !refuses(entry, to) && !hears(entry, to) -> goto judge
            fi
        }
sent: /* ForwardedPost, or the endpoint of the entry itself, at the replica `to` */
        do
        :: atomic { (stage == SENT || stage == AGREED) && runs(to) && live[to] &&
            (is_fresh[to] || (!away[to] && owns(to))) ->
            began = live[to]; executed++; assert(executed == 1); /* no silent second execution */
            working[to]++; stage = WORKS }
        :: atomic { (stage == SENT || stage == AGREED) && runs(to) && !away[to] && owner == to && !owns(to) &&
            !(live[to] && is_fresh[to]) && is_free(to) && !is_leaving[to] -> begin(to, epoch) }
        :: atomic { (stage == SENT || stage == AGREED) && runs(to) && hears(to, entry) && !(live[to] && is_fresh[to]) &&
            (is_leaving[to] || (!away[to] && owner != to)) -> goto resolve } /* frame m */
        :: atomic { (stage == SENT || stage == AGREED) && runs(to) && hears(to, entry) && away[to] && !is_fresh[to] ->
            goto ended } /* 503 */
        :: atomic { stage == SENT && to != entry && runs(to) && hears(to, entry) -> stage = WAITS }
        :: atomic { stage == WAITS && runs(to) && hears(to, entry) -> stage = AGREED }
#ifdef NO_AGREEMENT
        :: atomic { stage == WAITS && executed == 0 && runs(to) && live[to] && is_fresh[to] -> executed++ }
#endif
        :: atomic { stage == WORKS && runs(to) && hears(to, entry) ->
            working[to]--; stage = NOTHING;
            if
            :: may_answer(to) ->
                assert(has_forgotten || began >= latest); /* one owner acts, and its processes know what was answered */
                latest = began
            :: else /* -32014: another one has taken the session over */
            fi;
            goto ended }
        :: atomic { runs(entry) && to != entry && !hears(entry, to) -> goto judge }
        od;

judge: /* PeerRequests._look and takeover_decision.decide */
        atomic {
            runs(entry) && (away[entry] || hears(entry, to) || refuses(entry, to) ||
#ifndef WAITS_FOR_EVER
            lease[to] == VALID ||
#endif
            may_doubt(to) || lease[to] == EXPIRED);
            if
            :: hears(entry, to) && stage == NOTHING -> goto forward
            :: hears(entry, to) && stage != NOTHING -> goto sent /* Copies: the peer executes one */
            :: refuses(entry, to) -> is_gone = true
            :: !hears(entry, to) && !refuses(entry, to) && away[entry] -> goto ended
            :: !hears(entry, to) && !refuses(entry, to) && !away[entry] ->
                if
                :: lease[to] == OLD -> doubted[to] = true
                :: else
                fi
#ifdef LEASE_IGNORED
                ; is_gone = true
#endif
#ifdef LEASE_READ_ONCE
                ; is_gone = (lease[to] != VALID)
#endif
            fi
        }
take: /* Cluster.claim_from_owner, from an owner that may run unless it has refused a connection */
        atomic {
            runs(entry);
            if
            :: may_have_run && to != entry ->
                assert(faults < faults_when_sent || is_leaving[to]) /* who was silent before has got nothing */
            :: else
            fi;
            if
            :: stage == WORKS -> working[to]--
            :: else
            fi;
#ifdef RESENT
            stage = NOTHING;
#else
            stage = (may_have_run -> SENT : NOTHING);
#endif
            if
            :: away[entry] || is_leaving[entry] || given > CLAIMS -> goto ended
            :: !(away[entry] || is_leaving[entry] || given > CLAIMS) && entry == OLDER ->
                if /* Forwarder._have_claimed: not if the request may have taken effect */
                :: stage == SENT -> goto ended /* -32014, after the claim */
                :: else -> goto asks
                fi
            :: !(away[entry] || is_leaving[entry] || given > CLAIMS) && entry != OLDER
            fi
        }
claim:
        atomic {
            runs(by) || is_alone;
            if
            :: is_alone || away[by] || given > CLAIMS -> goto ended
#ifdef NO_COMPARE
            :: runs(by) && !away[by] && given <= CLAIMS ->
#else
            :: runs(by) && !away[by] && given <= CLAIMS && epoch == read ->
#endif
                next_epoch(); owner = by; knows_loss[by] = false;
                read = epoch;
                if
                :: !is_gone -> formers[by] = to; has_told[by] = false
                :: else
                fi;
                if
                :: has_told[by] = true
#ifndef NOT_TOLD
                    ; lost[to] = true
#endif
                :: may(LOST_ANSWER) && !is_gone -> faults-- /* the store's answer is lost, or this is as far as it got */
#ifdef NOT_TOLD_AGAIN
                    ; has_told[by] = true
#endif
                    ; goto retry
                fi
#ifndef NO_COMPARE
            :: runs(by) && !away[by] && given <= CLAIMS && epoch != read ->
                goto retry
#endif
            fi
        }
        atomic { /* SessionAttacher.take_over */
#ifdef NOT_ACKNOWLEDGED
            runs(by) || is_alone; formers[by] = NOBODY;
#else
            is_alone || (runs(by) && (formers[by] == NOBODY || away[by]));
#endif
            if
            :: is_alone || (runs(by) && away[by]) -> goto ended
            :: runs(by) && !away[by] && !is_leaving[by] -> begin(by, read)
            :: runs(by) && !away[by] && is_leaving[by]
            fi
        }
retry:
        atomic {
            runs(entry);
            if
            :: stage == SENT -> goto ended /* -32014: it may have taken effect */
            :: else -> goto resolve
            fi
        }
asks: /* PeerRequests.ask_to_claim; Forwarder.claim_for_peer at the replica `by`. If it may claim none, there is no other */
        atomic {
            runs(entry);
            if
            :: entry != 0 && to != 0 && hears(entry, 0) -> by = 0
            :: entry != 1 && to != 1 && hears(entry, 1) -> by = 1
            :: entry != 2 && to != 2 && hears(entry, 2) -> by = 2
            :: else -> goto ended /* 503 */
            fi
        }
        atomic {
            runs(by) || is_alone;
            if
            :: is_alone || away[by] || is_leaving[by] -> goto ended
            :: runs(by) && !away[by] && !is_leaving[by] -> to = owner; read = epoch
            fi;
            if
            :: to == by || to == NOBODY -> goto resolve
#ifdef BELIEVES_ASKER
            :: to != by && to != NOBODY -> is_gone = true; goto claim
#else
            :: to != by && to != NOBODY -> is_gone = false
#endif
            fi
        }
        atomic { /* PeerRequests.greet_owner */
            is_alone || (runs(by) && (away[by] || hears(by, to) || refuses(by, to) || lease[to] == VALID ||
                may_doubt(to) || lease[to] == EXPIRED));
            if
            :: is_alone || away[by] || hears(by, to) -> goto ended /* the owner stays: 503 */
            :: runs(by) && !away[by] && refuses(by, to) -> is_gone = true; goto claim
            :: runs(by) && !away[by] && !hears(by, to) && !refuses(by, to) ->
                if
                :: lease[to] == OLD -> doubted[to] = true
                :: else
                fi;
                goto claim
            fi
        }
    } unless { process[entry] == STOPPED || process[entry] == DEAD }; /* its client has no connection any more */
ended:
    atomic {
        if
        :: stage == WORKS -> working[to]--
        :: else
        fi;
        entered[entry]--
    }
over:
    ended_calls++
}

/* -- what goes wrong */

proctype Faults(byte r) {
    byte mine;
end:
    do
    :: atomic { may(PAUSE) && runs(r) -> faults--; process[r] = PAUSED }
    :: atomic { process[r] == PAUSED -> process[r] = UP }
    :: atomic { may(PAUSE) && runs(r) -> faults--; process[r] = STOPPED }
    :: atomic { may(DEATH) && runs(r) -> faults--; process[r] = DEAD;
        live[r] = 0; is_fresh[r] = false; knows_loss[r] = false; formers[r] = NOBODY; has_told[r] = false }
    :: atomic { may(CUT) && !cut[r] -> faults--; cut[r] = 1 }
    :: atomic { may(CUT) && !cut[r] -> faults--; cut[r] = 2 }
    :: atomic { cut[r] == 1 -> cut[r] = 0 }
    :: atomic { may(OUTAGE) && !away[r] -> faults--; away[r] = true }
    :: atomic { away[r] -> away[r] = false }
    :: atomic { may(DRAIN) && runs(r) && !is_leaving[r] -> faults--; is_leaving[r] = true }
    :: atomic { may(JUMP) && lease[r] != EXPIRED -> faults--; lease[r] = EXPIRED }
      /* SessionLifecycle.release_idle */
    :: atomic { renews(r) && is_leaving[r] && live[r] && working[r] == 0 ->
#ifdef RELEASED_FIRST
        if
        :: owns(r) -> owner = NOBODY
        :: else -> live[r] = 0
        fi }
#else
        mine = live[r]; live[r] = 0 }
    :: atomic { renews(r) && is_leaving[r] && mine ->
        if
        :: owner == r && epoch == mine -> owner = NOBODY
        :: else
        fi;
        mine = 0 }
#endif
    :: atomic { renews(r) && is_leaving[r] && !live[r] && !mine && entered[r] == 0 && working[r] == 0 &&
        formers[r] == NOBODY -> /* Cluster.leave */
        process[r] = DEAD; lease[r] = EXPIRED; is_fresh[r] = false; knows_loss[r] = false }
    od
}

proctype Failover() {
end:
    atomic { may(FAILOVER) && epoch != copied_epoch && !has_forgotten ->
        faults--; has_forgotten = true; owner = copied_owner; epoch = copied_epoch;
        lost[0] = false; lost[1] = false; lost[2] = false }
}

init {
    atomic {
        byte n;
        is_fresh[0] = true; is_fresh[1] = true; is_fresh[2] = true;
        owner = 0; live[0] = 1; copied_owner = 0;
        run Replica(0, 1, 2); run Replica(1, 0, 2); run Replica(2, 0, 1);
        run Faults(0); run Faults(1); run Faults(2); run Failover();
        for (n : 1 .. CALLS) { run Call() }
    }
}

#ifdef LIVENESS
ltl every_call_ends { <> (ended_calls == CALLS) }
#endif

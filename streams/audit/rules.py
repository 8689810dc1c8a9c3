"""The rules: what each finds, in a sentence, how bad it is; and the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from streams.audit.facts import Facts


class Severity(StrEnum):
    #: A promise is broken.
    BROKEN = "broken"
    #: Nothing is broken, and somebody has to do something.
    ATTENTION = "attention"


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    severity: Severity
    sentence: str


_B, _A = Severity.BROKEN, Severity.ATTENTION

#: In the order in which they are shown.
RULES: Final = tuple(
    Rule(*rule)
    for rule in (
        ("hand_off_lost", _B, "A step handed its job on, and the record is not there."),
        ("record_lost", _B, "A record was consumed, and its step was never committed."),
        ("removed_unread", _B, "Records were removed from a topic before they were consumed."),
        ("letter_missing", _B, "A step failed, and its dead letter is not there."),
        ("timer_missing", _B, "A step waits, and nothing is there that could wake it."),
        ("hand_off_doubled", _B, "A step's hand-off is there more than once."),
        ("step_doubled", _B, "A step was committed more than once."),
        ("letter_doubled", _B, "A failed step has more than one dead letter."),
        ("hand_off_without_cause", _B, "A record names a step that was never committed."),
        ("state_without_cause", _B, "A state names a record that its job never had."),
        ("letter_without_state", _B, "A dead letter names a step that did not fail."),
        ("unreadable_state", _B, "A record of job-state is no state."),
        ("branch_lost", _B, "A child was never started, or its end not told to the join agent."),
        ("branch_doubled", _B, "A child was started, or its end told, more than once."),
        ("branch_orphan", _B, "A child, or the end of one, that no step knows."),
        ("join_lost", _B, "The branches of a fork have come, and its job did not go on."),
        ("join_incomplete", _B, "A join was over before its branches had come."),
        ("join_doubled", _B, "A fork was joined more than once."),
        ("join_without_fork", _B, "A job was joined that waited for no branches."),
        ("join_differs", _B, "Postgres has other branches of a join than its topic."),
        ("run_lost", _B, "What a run waited for has come, and its job did not go on."),
        ("run_doubled", _B, "A step of a run was committed more than once, or it ended twice."),
        ("run_without_start", _B, "A run went on that was never begun, or was over."),
        ("run_differs", _B, "Postgres has another journal of a run than its topic."),
        ("gap", _B, "A step is missing between two others."),
        ("step_after_end", _B, "A job went on after its end without a redrive."),
        ("projection_missing", _B, "A job is not in the projection."),
        ("projection_extra", _B, "The projection has a job that never was."),
        ("projection_differs", _B, "The projection differs from the fold of job-state."),
        ("history_missing", _B, "A step is not in the history."),
        ("history_extra", _B, "The history has a step that never was."),
        ("history_differs", _B, "The history differs from job-state."),
        ("effect_doubled", _B, "An effect happened twice, by the ledger itself."),
        ("effect_repeated", _B, "An effect that must not be repeated was called again."),
        ("effect_orphaned", _B, "An effect belongs to no job."),
        ("target_doubled", _B, "The target did an effect more than once."),
        ("target_unknown", _B, "The target did an effect that the ledger does not know."),
        ("target_missing", _B, "The ledger calls an effect done that the target did not do."),
        ("effect_in_doubt", _A, "Nobody knows whether an effect happened: find out, resolve."),
        ("effect_unsettled", _A, "A job is over, and one of its effects was never settled."),
        ("stuck", _A, "A record waits to be consumed for too long: is a worker running?"),
        ("timer_overdue", _A, "A waiting job's time has come, and it was not woken."),
        ("projection_behind", _A, "Old steps are not in the projection: is a projector running?"),
        ("topic_truncated", _A, "Consumed records were removed early: they cannot be replayed."),
        ("position_unreadable", _A, "No worker can start from this group's offset."),
    )
)

#: What lies beyond the horizon, as it is said.
HORIZON: Final = {
    "causes_gone": "steps whose consumed record is no longer there",
    "hand_offs_gone": "hand-offs that are no longer there",
    "branches_gone": "children whose first record, or whose end, is no longer there",
    "letters_gone": "failed or waiting steps whose letter or timer is no longer there",
    "steps_unknown": "steps whose predecessor neither job-state nor the history still has",
    "writers_unknown": "records whose writing step neither job-state nor the history still has",
}

_INDEXES = (
    "index_records",
    "index_branches",
    "index_expected",
    "index_arrivals",
    "index_arrived_steps",
    "index_arrival_places",
    "index_forks",
    "index_run_steps",
    "index_began",
    "index_fired",
    "index_sent",
    "index_awaited",
    "index_letters",
    "index_timers",
    "index_also",
    "index_targets",
)
_FORKS = (
    "find_came",
    "index_came",
    "find_broods",
    "index_broods",
    "find_unstarted",
    "find_untold",
    "branch_lost",
    "branches_gone",
    "branch_doubled",
    "find_unforked",
    "branch_orphan",
    "branch_orphan_unknown",
    "find_joined",
    "count_joined",
    "join_incomplete",
    "join_lost",
    "join_doubled",
    "join_without_fork",
    "join_gap",
    "join_set_missing",
    "join_branch_missing",
    "join_branch_differs",
    "join_count_differs",
    "join_extra",
)
_RUNS = (
    "find_resting",
    "find_told",
    "index_told",
    "index_told_places",
    "run_doubled",
    "run_without_start",
    "run_cause_shared",
    "run_gap",
    "run_not_begun",
    "run_not_moved",
    "run_step_missing",
    "run_timer_missing",
    "run_timer_overdue",
    "run_missing",
    "run_event_missing",
    "run_event_differs",
    "run_extra",
)
_STEPS = (
    "history_extra",
    "history_missing",
    "history_differs",
    "merge_history",
    *_INDEXES,
    "index_states",
    "index_effects",
    "find_last",
    "index_last",
    "projection_missing",
    "projection_extra",
    "projection_differs",
    "projection_behind",
    "find_uncaused",
    "index_uncaused",
    "judge_uncaused",
    "find_turns",
    "index_turns",
    "find_run_turns",
    "index_run_turns",
    "index_run_seqs",
    "index_run_causes",
    "state_without_cause",
    "causes_gone",
    "topic_truncated",
    "gap",
    "steps_unknown",
    "step_doubled",
    "step_after_end",
    "find_unseen",
    "judge_unseen",
    "hand_off_lost",
    "hand_offs_gone",
    "hand_off_doubled",
    "find_unexplained",
    "hand_off_without_cause",
    "writers_unknown",
    "find_unanswered",
    "find_unanswered_joins",
    "find_unanswered_arrivals",
    "record_lost",
    "stuck",
    "timer_overdue",
    "removed_unread",
    "find_unlettered",
    "letter_missing",
    "letters_gone",
    "letter_doubled",
    "letter_without_state",
    *_FORKS,
    *_RUNS,
    "effect_in_doubt",
    "effect_unsettled",
    "effect_repeated",
    "effect_doubled",
    "effect_orphaned",
    "target_doubled",
    "target_unknown",
    "target_missing",
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Times that the rules judge by, epoch milliseconds; `stuck_ms` and `overdue_ms` are ages.

    `since_ms` 0: from the beginning. A state older than `compacted_ms` may have been compacted.
    """

    now_ms: int
    since_ms: int
    stuck_ms: int
    overdue_ms: int
    compacted_ms: int
    #: Number of job-state.
    state: int

    def values(self) -> dict[str, Any]:
        return {
            "now": self.now_ms,
            "since": self.since_ms,
            "stuck": self.stuck_ms,
            "overdue": self.overdue_ms,
            "compacted": self.compacted_ms,
            "state": self.state,
        }


def judge(facts: Facts, bounds: Bounds, progress: Callable[[int, int], None]) -> None:
    """Run all rules over complete facts: fills `finding`, `suspect` and `horizon`."""
    values: Mapping[str, Any] = bounds.values()
    for n, step in enumerate(_STEPS):
        progress(n, len(_STEPS))
        facts.run(step, values)
    progress(len(_STEPS), len(_STEPS))

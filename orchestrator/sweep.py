"""The sweep: settings in, a verdict out.  This loop is the table of contents of the whole product."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections import defaultdict
from datetime import UTC, datetime

from orchestrator.drafters import Inspected, note_findings
from orchestrator.engines import dialect_for
from orchestrator.events import Launched, OutputsChecked, Progress, TrialEnded
from orchestrator.facts import cards_of, facts_of
from orchestrator.launches import Launches, for_proposals
from orchestrator.plan import Plan
from orchestrator.pool import Pool
from orchestrator.progress import Narrator
from orchestrator.schedule import Schedule
from orchestrator.stored import conclude
from orchestrator.trials import whole
from results.acceptance import hopeless
from results.alike import dead_branches, nothing_runs
from results.ledger import Ledger, read_records
from results.record import Record
from results.rundir import RunDir
from results.verdict import Verdict
from sweeps.facts import Facts
from sweeps.sampler import Sampler


def sweep(plan: Plan, run: RunDir, pool: Pool, narrator: Narrator, inspected: Inspected | None = None) -> Verdict:
    """Run `plan` in `run` (which the caller holds locked) until the budget is spent, the space is exhausted, or a stop.

    What an earlier driver measured in `run` is taken up and not measured again.  What inspection refused and what turns
    out to guess nothing is launched no more.
    """
    inspected = inspected or Inspected()
    ledger = Ledger.open(run)
    facts = facts_of(plan)
    sampler = _sampler(plan, run, ledger, facts)
    schedule = Schedule(plan, run, ledger, sampler, on_space_exhausted=narrator.space_exhausted, facts=facts)
    narrator.starts(plan, run, pool.size, ledger.records)
    note_findings(run, inspected)
    narrator.inspected(inspected)
    for pair in (*inspected.refused, *hopeless(ledger.records)):
        schedule.give_up(*pair)
    for branch in dead_branches(ledger.records, pool.size):
        schedule.give_up(*branch)
    for event in pool.run(schedule.draw):
        match event:
            case Record():
                event = inspected.marked(event)
                ledger.append(event)
                note_failure(run, event)
                sampler.learn(event.observation(plan.goal))
                if event.failure is not None and event.failure.kind.blame == "environment":
                    schedule.call_off("the engine's environment is broken: every launch would fail the same way")
            case TrialEnded():
                event = dataclasses.replace(event, complete=schedule.ended(event.trial, event.complete, event.retry))
                if event.complete:
                    sampler.finish(event.trial)
                note_end(run, event)
                note_fall_back(run, narrator, sampler)
                give_up_hopeless(run, schedule, narrator, ledger.records, pool.size)
                if (failure := nothing_runs(ledger.records, pool.size)) is not None:
                    schedule.call_off(f"every launch fails alike: {failure.kind} at {failure.stage}")
            case Launched():
                run.amend(event.trial, process_group=event.process_group, marker=event.marker, host=event.host)
                run.journal.note("launched", trial=event.trial, gpus=list(event.gpus), host=event.host)
            case OutputsChecked():
                ledger.amend(event.trial, event.lossless.on)
                run.journal.note("outputs_checked", trial=event.trial, **dataclasses.asdict(event.lossless))
            case Progress():
                run.amend(event.trial, ready_at=datetime.now(UTC).isoformat())
        narrator.tell(event, schedule.charged)
    cut_short = "interrupted" if pool.stopped else "left without a GPU set" if pool.spent else None
    narrator.ends(cut_short or schedule.why_ended)
    run.journal.note(
        "search_ended", why=cut_short or schedule.why_ended, cut_short=bool(cut_short), **sampler.expects()
    )
    if not cut_short:
        shutil.rmtree(run.outputs_dir, ignore_errors=True)  # no plain server comes any more
    return conclude(plan, run, ledger.records)


def note_failure(run: RunDir, record: Record) -> None:
    if (failure := record.failure) is not None:
        run.journal.note("trial_failed", trial=record.trial, attempt=record.attempt, kind=str(failure.kind), stage=str(failure.stage), cause=failure.cause_in_short())  # fmt: skip


def note_end(run: RunDir, ended: TrialEnded) -> None:
    """The journal's line of an ended trial; what its server left behind gets a line of its own, which the report reads."""
    run.journal.note(
        "trial_ended", trial=ended.trial, held_s=ended.held_s, gpus=list(ended.gpus), complete=ended.complete
    )
    if ended.left_over:
        run.journal.note("left_behind", trial=ended.trial, gpus=list(ended.gpus), what=list(ended.left_over))


def note_fall_back(run: RunDir, narrator: Narrator, sampler: Sampler) -> None:
    """Proposals that are not the model's are said once for each reason, in the journal and to the person."""
    if (why := sampler.new_fall_back()) is not None:
        run.journal.note("sampler_fell_back", to="tpe", why=why)
        narrator.falls_back(why)


def give_up_hopeless(run: RunDir, schedule: Schedule, narrator: Narrator, records: list[Record], gpu_sets: int) -> None:
    """No more launches of what guesses nothing, does not fit or fails alike; said once, in the journal and to the person."""
    for pair, reason in hopeless(records).items():
        if schedule.give_up(*pair):
            run.journal.note(reason.event, algorithm=pair[0], drafter=pair[1], **reason.facts)
            narrator.gives_up(pair, reason)
    for branch, reason in dead_branches(records, gpu_sets).items():
        if schedule.give_up(*branch):
            named = dict(zip(("algorithm", "drafter", "attention_backend"), branch, strict=True))
            run.journal.note(reason.event, **named, **reason.facts)
            narrator.gives_up(branch, reason)


def _sampler(plan: Plan, run: RunDir, ledger: Ledger, facts: Facts) -> Sampler:
    """A sampler that knows everything measured so far, in this run and in the runs it is warmed with."""
    begun = len(run.begun())
    base = plan.sampler.seed if plan.sampler.seed is not None else random.SystemRandom().randrange(2**31)
    seed = (base + 7919 * begun) % 2**31
    sampler = Sampler(
        plan.space,
        plan.goal,
        plan.sampler.name,
        seed,
        facts,
        launches=for_proposals(plan, facts),
        ends=plan.sampler.ends,
    )
    if plan.engine.name == "replay":
        _leave_out_unrecorded(sampler, plan, facts)
    for index, earlier in enumerate(plan.warm_start, start=1):
        known = read_records(earlier)
        hint = "" if _alike(plan, known, ledger.records) else str(earlier)
        run.journal.note("warm_started", run=str(earlier), rows=len(known), use="hint" if hint else "data")
        _teach(sampler, plan, known, elsewhere=index, hint=hint)
    _teach(sampler, plan, ledger.records)
    return sampler


def _alike(plan: Plan, earlier: list[Record], here: list[Record]) -> bool:
    """Whether rows of an earlier run are of this target, and of these GPUs as far as both are known."""
    targets, cards = ({getattr(r.origin, name) for r in earlier} for name in ("target", "gpu_name"))
    own_cards = {r.origin.gpu_name for r in here} or {gpu.name for gpu in cards_of(plan) or ()}
    return targets <= {dialect_for(plan).target} and (not own_cards or cards <= own_cards)


def _leave_out_unrecorded(sampler: Sampler, plan: Plan, facts: Facts) -> None:
    """What a recording cannot answer is in nobody's space."""
    launches = Launches(plan, facts)
    for settings in launches.legal.settings:
        if not launches.answered(settings):
            sampler.seen(settings)


def _teach(sampler: Sampler, plan: Plan, records: list[Record], elsewhere: int = 0, hint: str = "") -> None:
    """Replay rows; trials of the `elsewhere`-th other run get numbers of their own and may still be measured here.

    `hint`: name of a run of another target or other GPUs, whose rows are no data of this one.
    """
    trials: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        trials[record.trial].append(record)
    for number, rows in trials.items():
        own = number - elsewhere * 1_000_000
        for record in rows:
            observation = record.observation(plan.goal)
            sampler.learn(dataclasses.replace(observation, trial=own, elsewhere=hint))
        if elsewhere or whole(plan, rows):
            sampler.finish(own, here=not elsewhere)

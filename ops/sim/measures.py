"""What some scenarios measure beyond latency and throughput, for their bars."""

from __future__ import annotations

from ops.percentiles import NS_PER_MS, percentile
from ops.sim.article import answer_tokens_per_s
from ops.sim.driver import Outcome
from ops.sim.policies import Job
from ops.sim.profiles import Profile
from ops.sim.traffic import CLASSES, FLASH, NS

SLO_NS = int(CLASSES[FLASH].slo_ms * 1e6)
TOXIC_NS = int((CLASSES[FLASH].toxic_ms or 0) * 1e6)


def burst(outcome: Outcome, profile: Profile) -> dict[str, float]:
    """Return how a burst went.

    ``makespan_ratio`` is the time from the end of the steps that were already decided when the burst came to the last
    result, against what its tokens and steps cost alone; ``from_arrival_ratio`` the same from the burst itself.
    ``on_time_ratio`` compares with shortest first in one step right behind those decided steps, which no order beats
    at the engine's mean speed; a step that turns out faster can.
    """
    flash = _flash(outcome)
    done = [job for job in flash if job.done_ns]
    at = flash[0].arrival.at_ns
    free_at = outcome.committed_ns[flash[0].number]
    costs = profile.costs
    link = profile.link_us * 1000
    last = max((job.done_ns for job in done), default=at)
    steps = len({job.first_ns for job in done})
    alone = (
        sum(_seconds(job, profile) for job in done) + steps * costs.step + (_answer_seconds(profile) if done else 0.0)
    )
    best = _most_on_time(flash, profile, (at + SLO_NS - link - free_at) / NS)
    on_time = sum(1 for job in done if job.latency_ns <= SLO_NS)
    return {
        "makespan_ratio": (last - link - free_at) / NS / alone if alone else 0.0,
        "from_arrival_ratio": (last - at) / NS / alone if alone else 0.0,
        "on_time": on_time,
        "best_on_time": best,
        "on_time_ratio": on_time / best if best else 1.0,
        "past_toxic": sum(1 for job in done if job.latency_ns > TOXIC_NS),
        "run_in_vain": sum(1 for job in flash if job.expired_ns and job.runs),
    }


def waits(outcome: Outcome, profile: Profile) -> dict[str, float]:
    """Return the most engine steps that began while a headline waited at the worker, during the long prefill."""
    document = next(job for job in outcome.jobs if job.arrival.class_index != FLASH)
    until = document.first_ns or outcome.ended_ns
    during = [job for job in _flash(outcome) if job.arrival.at_ns < until]
    return {"waited_steps": max((job.waited_steps for job in during), default=0), "headlines": len(during)}


def overload(outcome: Outcome, profile: Profile) -> dict[str, float]:
    """Return the lower classes' share of the tokens, what became of the headlines and how many were held at most."""
    flash = _flash(outcome)
    ended = sum(1 for job in flash if job.done_ns or job.expired_ns)
    arrived_per_toxic = len(flash) / (outcome.window.end - outcome.window.begin) * TOXIC_NS / NS
    return {
        "lower_share": outcome.lower_tokens / outcome.all_tokens if outcome.all_tokens else 0.0,
        "lost": len(flash) - ended,
        "held_ratio": outcome.max_urgent / arrived_per_toxic,
    }


def answers(outcome: Outcome, profile: Profile) -> dict[str, float]:
    """Return the founding article's own figures: over all requests, late ones, and tokens of the answers."""
    flash = _flash(outcome)
    latencies = sorted(job.latency_ns / NS_PER_MS for job in outcome.jobs if job.done_ns)
    return {
        "all_p50_ms": percentile(latencies, 50),
        "all_p99_ms": percentile(latencies, 99),
        "late": sum(1 for job in flash if not job.done_ns or job.latency_ns > SLO_NS),
        "answer_tokens_per_s": answer_tokens_per_s(outcome),
    }


def _flash(outcome: Outcome) -> list[Job]:
    return [job for job in outcome.jobs if job.arrival.class_index == FLASH]


def _seconds(job: Job, profile: Profile) -> float:
    """Return what the tokens of a headline cost that no cache holds."""
    wrap, costs = profile.extractors["headline"], profile.costs
    cached = wrap.shared_prefix_tokens // profile.limits.block_size * profile.limits.block_size
    own = wrap.prompt_tokens - cached + job.arrival.text_tokens
    return own * costs.prefill_token + (own * cached + own * (own - 1) / 2) * costs.attended_pair


def _answer_seconds(profile: Profile) -> float:
    """Return what the steps take that the last headline's answer needs after its first token, alone in them.

    Those of the others may share steps with prompts; these cannot, since there are none left.
    """
    costs = profile.costs
    return (profile.extractors["headline"].max_new_tokens - 1) * (costs.step + costs.floor)


def _read_seconds(job: Job, profile: Profile) -> float:
    """Return what the answer of a headline reads from the KV cache in those steps."""
    wrap = profile.extractors["headline"]
    prompt, further = wrap.prompt_tokens + job.arrival.text_tokens, wrap.max_new_tokens - 1
    return sum(prompt + n for n in range(further)) * profile.costs.kv_token


def _most_on_time(flash: list[Job], profile: Profile, seconds: float) -> int:
    """Return how many headlines fit into this time: one step with all prompts, one for each further answer token."""
    costs = profile.costs
    left = seconds - costs.step - _answer_seconds(profile)
    if left < costs.floor:
        return 0
    count = 0
    for job in sorted(flash, key=lambda job: job.arrival.text_tokens):
        left -= _seconds(job, profile) + _read_seconds(job, profile)
        if left < 0:
            break
        count += 1
    return count

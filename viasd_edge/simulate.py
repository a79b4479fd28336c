"""Replay of traces at another device's costs: how fast the run, and plain decoding, would have been there.

Every decision stays as it was traced: who drafted, how much, what stood. Another model or machine would accept as many
drafts only if its models agreed as often, and the policy might draft other lengths there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from viasd_edge.costs import Weights
from viasd_edge.curves import Curve
from viasd_edge.errors import TraceError
from viasd_edge.folders import cache_dir, models_dir
from viasd_edge.mask import LayerMask
from viasd_edge.profiles import Profile
from viasd_edge.registry import resolve
from viasd_edge.strategies import Tier
from viasd_edge.trace import Trace

_FREE_DRAFTERS = (None, "ngram")


@dataclass(frozen=True)
class Source:
    """Where a tier's times come from."""

    file: str
    mask: str | None
    times: Literal["measured", "modelled"]
    random_weights: bool  # the file stands for a model of its shape: what it would accept is not known


@dataclass(frozen=True)
class Prediction:
    """One trace elsewhere. Prompt processing is left out; drafts stand as often as they did where it was traced."""

    trace: str
    mode: str
    tokens: int
    traced_tokens_per_s: float  # measured, where it was traced
    tokens_per_s: float
    plain_tokens_per_s: float
    ratio: float
    ms: dict[Tier, float]  # by tier, of the run
    sources: dict[Tier, Source]

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        return asdict(self)


def simulate(
    paths: Sequence[Path], profile: Profile, *, model: str | None = None, draft_model: str | None = None
) -> list[Prediction]:
    """Predict traces on the device of `profile`, of the traced models or of `model` and `draft_model` in their place.

    A profile with measured curves is that of its own models; with a roofline the files are read, for their sizes
    alone. Raises TraceError, ModelError, DownloadError.
    """
    files: dict[str, Path] = {}
    weights: dict[str, Weights] = {}
    predictions = []
    for trace in map(Trace.read, paths):
        used: set[Tier] = {"full"}
        used |= {tier for widths in passes(trace) for tier, ns in widths.items() if ns}
        curves: dict[Tier, Curve] = {}
        sources: dict[Tier, Source] = {}
        for tier in sorted(used):
            traced, instead = (trace.draft_model, draft_model) if tier == "draft" else (trace.model, model)
            name = instead or str(traced)
            mask = LayerMask.parse(trace.mask) if tier == "slim" and trace.mask else None
            if instead and name not in files:
                files[name] = resolve(name)
            if not profile.is_measured and name not in weights:
                weights[name] = Weights.read(files[name] if instead else _traced_file(trace, name))
            file = files[name].name if instead else name
            found = weights.get(name)
            curves[tier] = profile.curve(tier, file, mask, found)
            times: Literal["measured", "modelled"] = "measured" if profile.is_measured else "modelled"
            sources[tier] = Source(file, str(mask) if mask else None, times, bool(found and found.is_random))
        predictions.append(predict(trace, curves, sources))
    return predictions


def _traced_file(trace: Trace, name: str) -> Path:
    """The file of a traced name among pulled models and requantised drafters. Raises TraceError."""
    paths = [folder / name for folder in (models_dir(), cache_dir("drafters"))]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        option = "--draft" if name == trace.draft_model else "--model"
        raise TraceError(f"{trace.name}: ran {name}, which is not at hand for its size: name a file with {option}")
    return found


def predict(trace: Trace, curves: Mapping[Tier, Curve], sources: dict[Tier, Source]) -> Prediction:
    """What a trace takes where passes cost what `curves` say. Raises TraceError for what it cannot replay."""
    if not trace.tokens:
        raise TraceError(f"{trace.name}: holds no tokens; trace a generation of at least one")
    ms: dict[Tier, float] = {"draft": 0.0, "slim": 0.0, "full": 0.0}
    for widths in passes(trace):
        for tier, ns in widths.items():
            ms[tier] += sum(curves[tier].at(n) for n in ns) * 1e3
    speed = trace.tokens / sum(ms.values()) * 1e3
    plain = 1.0 / curves["full"].at(1)
    traced = sum(round_.ms for round_ in trace.rounds)
    return Prediction(
        trace=trace.name,
        mode=trace.mode,
        tokens=trace.tokens,
        traced_tokens_per_s=round(trace.tokens / traced * 1e3, 3) if traced else 0.0,
        tokens_per_s=round(speed, 3),
        plain_tokens_per_s=round(plain, 3),
        ratio=round(speed / plain, 3),
        ms={tier: round(spent, 3) for tier, spent in ms.items()},
        sources=sources,
    )


def passes(trace: Trace) -> Iterator[dict[Tier, list[int]]]:
    """Widths of the passes of every round, by tier.

    A draft model's first pass of a round takes in all that it has not seen: the tokens that were decoded without it,
    and what came after the last of its own guesses that stood. It has evaluated each of its guesses but the last.
    The prompt it has seen to the end, so that the first guess after it needs no pass.
    Guesses of which nothing became (`asked` is more than drafted) count as wrong: where one of them was what the full
    model chose instead, the real pass was narrower by those that were right. The target under its mask, as drafter,
    starts each draft from the full model's cache. Raises TraceError for other drafters, whose passes a trace does not
    tell.
    """
    seen = trace.rounds[0].n_past + 1 if trace.rounds else 0  # tokens in the draft model's cache that still hold
    for round_ in trace.rounds:
        widths: dict[Tier, list[int]] = {
            "draft": [],
            "slim": [round_.slim_width] if round_.slim_width else [],
            "full": [round_.full_width] if round_.full_width else [],
        }
        if not round_.asked or round_.drafter in _FREE_DRAFTERS:
            pass
        elif round_.drafter == "model":
            unseen = max(round_.n_past + 1 - seen, 0)
            widths["draft"] = [*([unseen] if unseen else []), *[1] * (round_.asked - 1)]
            seen = round_.n_past + 1 + min(round_.asked - 1, round_.accepted)
        elif round_.drafter == "layerskip":
            widths["slim"] += [1] * round_.asked
        else:
            raise TraceError(
                f"{trace.name}: a trace does not tell the passes of drafter {round_.drafter!r}; "
                "trace a run with --drafter model, ngram or layerskip"
            )
        yield widths

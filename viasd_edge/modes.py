"""The named ways to decode, and how each is put together from drafters, planner, rule and gate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from viasd_edge.curves import Curve, curve, known_curve
from viasd_edge.drafters import (
    CascadeDrafter,
    ChainDrafter,
    GreedyDrafter,
    NgramDrafter,
    OwnCache,
    SharedCache,
    UntilEnd,
)
from viasd_edge.errors import MaskError, ModelError
from viasd_edge.limits import DRAFT_MAX, LOSSLESS, MAX_DRAFT, MODES, DrafterName, Mode, PolicyName
from viasd_edge.mask import LayerMask
from viasd_edge.policy import Auto, Costs, Fallback, Fixed, Times
from viasd_edge.runner import Runner
from viasd_edge.search.online import OnlineSearch, Searching
from viasd_edge.strategies import (
    Drafter,
    EntropyWindow,
    Exact,
    Gate,
    Planner,
    Ratio,
    Rollback,
    Rule,
    Sampling,
    Stats,
    Token,
    TokenV3,
    parse_gate,
    plain,
    speculative,
    tiered,
)

_FLY_DRAFT = 15  # tokens, always: its rule needs to see what follows a mismatch


@dataclass(frozen=True)
class Parts:
    """What a mode is put together from. `drafters` None: those that the parts allow.

    Raises ModelError, MaskError or ValueError for parts that do not make the mode.
    """

    target: Runner
    mode: Mode
    draft: Runner | None = None
    mask: LayerMask | None = None
    gate: Gate = field(default_factory=Ratio)
    keep_kv: bool = True
    draft_max: int = DRAFT_MAX
    drafters: tuple[DrafterName, ...] | None = None
    policy: PolicyName = "auto"
    costs: Costs | None = None  # None: measured when needed
    search: OnlineSearch | None = None  # in the place of a mask: exact mode without a draft model

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r}; it must be one of {', '.join(MODES)}")
        if not 1 <= self.draft_max <= MAX_DRAFT:
            raise ValueError(f"draft_max is {self.draft_max}; it must be from 1 to {MAX_DRAFT}")
        self._check_search()
        if self.mode == "plain":
            return
        if self.mode == "tiered" and self.mask is None:
            raise MaskError('tiered mode needs a mask: --mask FILE, or its layers like --mask "layers:4-7"')
        if self.mode in {"tiered", "bild", "fly"} and self.draft is None:
            raise ModelError(f"{self.mode} mode needs a drafter: name one with -md, or use --mode plain")
        if self.mask is not None:
            self.mask.check(self.target.model.n_layer, self.target.model.fingerprint)
        for name in self.drafters or ():
            self._require(name)
        for runner in (self.target, self.draft):
            if runner is not None and not runner.can_rewind:
                raise ModelError(f"{runner.model.path}: its cache cannot drop tokens; use --mode plain")

    def _require(self, name: DrafterName) -> None:
        if name in {"model", "filtered", "chain"} and self.draft is None:
            raise ModelError(f"drafter {name!r} needs a draft model: name one with -md")
        if name in {"layerskip", "filtered"} and self.mask is None and self.search is None:
            raise MaskError(f'drafter {name!r} needs a mask: --mask FILE, or its layers like --mask "layers:4-7"')
        if name in {"layerskip", "filtered"} and self.mode == "tiered":
            raise MaskError(f"drafter {name!r} works in the target's cache, which tiered mode needs; use exact mode")

    def _check_search(self) -> None:
        if self.search is None:
            return
        if self.mode != "exact" or self.draft is not None or self.mask is not None:
            raise MaskError("a search while generating needs --self: exact mode, no draft model, and a mask of its own")
        if self.drafters is not None and "layerskip" not in self.drafters:
            raise MaskError("a search while generating learns from drafts under its mask: add --drafter layerskip")

    @property
    def lossless(self) -> bool:
        """Whether the output is the full model's own."""
        return self.mode in LOSSLESS

    @cached_property
    def drafter_names(self) -> tuple[DrafterName, ...]:
        """The drafters in use, cheapest first."""
        if self.drafters is not None:
            return self.drafters
        if self.search is not None and self.policy == "fixed":  # a chain would not tell who guessed
            return ("layerskip",)
        names: list[DrafterName] = ["ngram"]
        if self.draft is not None:
            names.append("model")
        if (self.mask is not None or self.search is not None) and self.mode == "exact":
            names.append("filtered" if self.draft is not None else "layerskip")
        return tuple(names)

    @cached_property
    def full_curve(self) -> Curve:
        return curve(self.target)

    @cached_property
    def slim_curve(self) -> Curve:
        return curve(self.target, self.mask)

    @cached_property
    def draft_curve(self) -> Curve:
        assert self.draft is not None  # noqa: S101  # asked for by drafters that need it
        return curve(self.draft)

    @property
    def costs_known(self) -> bool:
        """Whether a generation can start without measuring first."""
        if self.mode == "plain" or self.policy == "fixed" or self.costs is not None:
            return True
        known = [known_curve(self.target), *([known_curve(self.draft)] if self.draft else [])]
        return all(known) and (self.mask is None or known_curve(self.target, self.mask) is not None)

    def measured_costs(self) -> Costs:
        """What the policy needs to know; the first time on a machine it takes some seconds."""
        if self.costs is not None:
            return self.costs
        guess = {name: self._guess_seconds(name) for name in (*self.drafter_names, *self._cascade)}
        return Costs(self.full_curve, guess, self.slim_curve if self.mode == "tiered" else None)

    @cached_property
    def times(self) -> Times:
        """What the policy knows of costs; every generation adds to it."""
        return Times(self.measured_costs(), self.draft_max)

    @property
    def _cascade(self) -> tuple[str, ...]:
        return ("cascade",) if self.mode == "cascade" else ()

    def _guess_seconds(self, name: str) -> float:
        """A first estimate; the policy follows what it sees."""
        if name == "ngram":
            return 0.0
        if name == "layerskip" and self.search:
            return self.full_curve.at(1) * (1 - self.search.schedule.skip_ratio)
        if name == "layerskip":
            return self.slim_curve.at(1)
        if name == "filtered":  # four drafted tokens and a slim pass, most of which stand
            return self.draft_curve.at(1) + self.slim_curve.at(5) / 4
        if name == "cascade":
            return (self.draft_curve if self.draft else self.slim_curve).at(5) / 2
        return self.draft_curve.at(1)

    def planner(self) -> Planner | None:
        """A planner for one generation; None: plain decoding."""
        if self.mode == "plain":
            return None
        planner = self._planner()
        if self.search is None:
            return planner
        self.target.set_probe(self.search.confidence, last=self.search.probe_last)
        return Searching(planner, self.search, self.target)

    def _planner(self) -> Planner:
        keep_logits = self.mode == "tiered" and self.gate.needs_draft
        if self.mode == "bild":
            return Fallback(self._drafters(("model",))[0])
        if self.mode == "fly":
            return Fixed(self._drafters(("model",))[0], draft_max=_FLY_DRAFT, wanted=0.0, threshold=0.0)
        drafters = [self._cascade_drafter()] if self.mode == "cascade" else self._drafters(self.drafter_names)
        if self.policy == "auto":
            return Auto(drafters, self.times, draft_max=self.draft_max, keep_logits=keep_logits)
        drafter = drafters[0] if len(drafters) == 1 else ChainDrafter(drafters)
        return Fixed(drafter, draft_max=self.draft_max, slim=self.mode == "tiered", keep_logits=keep_logits)

    def _drafters(self, names: Sequence[DrafterName]) -> list[Drafter]:
        own = OwnCache(self.draft) if self.draft else None
        search, mask = self.search, self.mask
        shared = SharedCache(self.target, lambda: search.mask) if search else None
        shared = SharedCache(self.target, mask) if mask else shared
        made: list[Drafter] = []
        for name in names:
            if name == "ngram":
                made.append(NgramDrafter())
            elif name == "layerskip" and shared:
                made.append(GreedyDrafter("layerskip", shared))
            elif name == "filtered" and own and shared:
                made.append(CascadeDrafter(GreedyDrafter("model", own), shared, name="filtered", leniency=1.0))
            elif name == "chain" and own:
                made.append(ChainDrafter([NgramDrafter(), GreedyDrafter("model", own)]))
            elif own:
                made.append(GreedyDrafter("model", own))
        return [self._until_end(drafter) for drafter in made]

    def _until_end(self, drafter: Drafter) -> Drafter:
        return UntilEnd(drafter, self.target.model.is_end)

    def _cascade_drafter(self) -> Drafter:
        cache: OwnCache | SharedCache
        if self.draft:
            cache = OwnCache(self.draft)
        elif self.mask:
            cache = SharedCache(self.target, self.mask)
        else:
            raise ModelError("cascade mode needs a draft model (-md) or a mask (--mask)")
        return self._until_end(CascadeDrafter(NgramDrafter(), cache, name="cascade"))

    def tokens(
        self, prompt: Sequence[int], planner: Planner | None, *, sampling: Sampling, max_tokens: int, stats: Stats
    ) -> Iterator[Token]:
        """The token generator of this mode. Raises ValueError for sampling in a mode that is greedy by nature."""
        chooser = sampling.chooser(prompt)
        if planner is None:
            return plain(self.target, prompt, chooser=chooser, max_tokens=max_tokens, stats=stats)
        if not self.lossless and not sampling.is_greedy:
            raise ValueError(f"{self.mode} mode is greedy: use exact mode for a temperature or penalties")
        if self.mode == "tiered" and self.mask:
            return tiered(
                self.target,
                planner,
                prompt,
                mask=self.mask,
                gate=self.gate,
                keep_kv=self.keep_kv,
                max_tokens=max_tokens,
                stats=stats,
            )
        rules: dict[str, Rule] = {"token-v3": TokenV3(), "bild": Rollback(), "fly": EntropyWindow()}
        rule = rules.get(self.mode, Exact(chooser))
        return speculative(self.target, planner, prompt, rule=rule, max_tokens=max_tokens, stats=stats)


def calibrated(mask: LayerMask, draft: Runner, tolerance: float) -> dict[str, Any]:
    """The parts that `viasd-edge calibrate` found for this mask and drafter. Raises MaskError if it did not."""
    calibration = mask.calibration(draft.model.fingerprint, tolerance)
    return {"gate": parse_gate(calibration.gate), "keep_kv": calibration.keep_kv}

"""The policy in a simulated machine: passes cost what a curve says, guesses stand with a known chance."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from fakes import FakeDrafter

from viasd_edge.curves import Curve
from viasd_edge.policy import Auto, Costs, Fallback, Fixed, Times
from viasd_edge.strategies import Draft, Guess, Round, Token

STEEP = Curve((1, 2, 4, 8, 16, 32), (0.1, 0.19, 0.37, 0.73, 1.4, 2.8))  # stock kernels
OURS = Curve((1, 2, 4, 8, 16, 32), (0.08, 0.085, 0.108, 0.152, 0.24, 0.463))
FLAT = Curve((1, 32), (0.1, 0.12))


class Machine:
    """Guesses are 0 where they stand, 1 where they do not; what follows is decided by chance, from a seed."""

    def __init__(self, curve, *, guess_seconds, chance, confidence=0.9, slow=1.0, seed=0):
        self._random = random.Random(seed)  # noqa: S311  # a simulation
        self.curve, self.guess_seconds, self.slow = curve, guess_seconds, slow
        self.chance = chance  # of the n-th token
        self.stands: dict[int, bool] = {}
        self.drafter = FakeDrafter(lambda tokens: 0 if self._stands(len(tokens)) else 1, confidence)
        self.seconds = 0.0
        self.tokens = [0, 0]

    def _stands(self, at):
        return self.stands.setdefault(at, self._random.random() < self.chance(at))

    def run(self, planner, n):
        end = len(self.tokens) + n
        planner.begin(self.tokens)
        while len(self.tokens) < end:
            draft = planner.draft(self.tokens, end - len(self.tokens) - 1)
            ids = draft.ids
            accepted = next((i for i, token in enumerate(ids) if token == 1), len(ids))
            drafting = draft.asked * self.guess_seconds * self.slow
            full = self.curve.at(len(ids) + 1) * self.slow
            emitted = [Token(0, "draft")] * accepted + [Token(0, "full")]
            tested = min(accepted + 1, len(ids))
            self.seconds += drafting + full
            round_ = Round(len(self.tokens) - 1, draft, emitted, tested, accepted, full_width=len(ids) + 1)
            round_.draft_seconds, round_.full_seconds = drafting, full
            planner.learn(round_)
            self.tokens += [0] * len(emitted)
        return n / self.seconds

    def auto(self, times=None):
        costs = Costs(self.curve, {self.drafter.name: self.guess_seconds})
        return Auto([self.drafter], times or costs, draft_max=32)

    @property
    def plain(self):
        return 1 / (self.curve.at(1) * self.slow)


def machine(curve, chance, **options):
    return Machine(curve, chance=chance if callable(chance) else lambda _at: chance, **options)


@pytest.mark.parametrize("n", [65, 200, 1000])
@pytest.mark.parametrize("confidence", [0.2, 0.6, 0.999])
@pytest.mark.parametrize("chance", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("guess_seconds", [0.0, 0.02, 0.03])
@pytest.mark.parametrize("curve", [STEEP, OURS, FLAT])
def test_it_never_loses_two_percent(curve, guess_seconds, chance, confidence, n):
    """Case 14: a hopeless drafter, however sure of itself, on any machine."""
    sim = machine(curve, chance, guess_seconds=guess_seconds, confidence=confidence)
    assert sim.run(sim.auto(), n) > 0.98 * sim.plain


@pytest.mark.parametrize("n", [65, 200])
@pytest.mark.parametrize("confidence", [0.6, 0.999])
@pytest.mark.parametrize("guess_seconds", [0.0, 0.02, 0.03])
@pytest.mark.parametrize("curve", [STEEP, OURS, FLAT])
def test_what_good_texts_won_is_not_lost_on_hopeless_ones(curve, guess_seconds, confidence, n):
    """Of a stream of texts, whatever came before, each loses less than two percent."""
    options = {"guess_seconds": guess_seconds, "confidence": confidence}
    times = Times(Costs(curve, {"fake": guess_seconds}), 32)
    for chance in (0.98, 0.98, 0.0, 0.05, 0.98, 0.0, 0.0):
        sim = machine(curve, chance, **options)
        assert sim.run(sim.auto(times), n) > 0.98 * sim.plain


@pytest.mark.parametrize("curve", [STEEP, OURS, FLAT])
@pytest.mark.parametrize("guess_seconds", [0.0, 0.02])
def test_a_good_text_after_hopeless_ones_is_drafted_as_if_it_were_the_first(curve, guess_seconds):
    """Who remembers that guesses fail does not ask, and who does not ask does not learn better."""
    times = Times(Costs(curve, {"fake": guess_seconds}), 32)
    for _ in range(10):
        sim = machine(curve, 0.0, guess_seconds=guess_seconds)
        sim.run(sim.auto(times), 300)
    alone, after = (machine(curve, 0.95, guess_seconds=guess_seconds) for _ in range(2))
    assert after.run(after.auto(times), 300) > 0.9 * alone.run(alone.auto(), 300)


def test_texts_put_a_measured_curve_right():
    """A pass of two costs less beside one of one than was measured, which is what a guess is worth trying by."""
    measured = Curve(OURS.n, tuple(second + 0.012 * (n > 1) for n, second in zip(OURS.n, OURS.seconds, strict=True)))
    times = Times(Costs(measured, {"fake": 0.02}), 32)
    for seed in range(6):
        sim = machine(OURS, 0.5, guess_seconds=0.02, confidence=0.5, seed=seed)
        sim.run(sim.auto(times), 60)
    assert times.full.seconds(2) - times.full.seconds(1) == pytest.approx(0.005, abs=0.002)
    assert times.full.seconds(1) == pytest.approx(0.08, rel=0.02)


def test_a_wider_pass_is_never_expected_to_be_the_cheaper_one():
    passes = Times(Costs(OURS, {}), 32).full
    for n, seconds in ((1, 0.08), (4, 0.06), (8, 0.3), (4, 0.06), (2, 0.07), (16, 0.1)) * 5:
        passes.observe(n, seconds)
        times = [passes.seconds(width) for width in range(34)]
        assert times == sorted(times)
        assert times[0] == 0.0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("chance", [0.5, 0.75, 0.95, 0.99])
def test_it_comes_near_the_best_fixed_length(chance, seed):
    best = 0.0
    for length in range(17):
        sim = machine(OURS, chance, guess_seconds=0.028, seed=seed)

        class Length:
            def __init__(self, drafter, length):
                self.drafter, self.length = drafter, length

            def begin(self, prompt):
                pass

            def draft(self, tokens, room):
                guesses = list(islice(self.drafter.guesses(tokens), min(self.length, room)))
                return Draft(self.drafter.name, guesses, asked=len(guesses))

            def learn(self, round_):
                pass

        best = max(best, sim.run(Length(sim.drafter, length), 400))
    sim = machine(OURS, chance, guess_seconds=0.028, confidence=chance, seed=seed)
    assert sim.run(sim.auto(), 400) > 0.9 * best


def test_it_notices_that_drafting_begins_to_pay():
    """A drafter that costs nothing to ask: one with a model falls behind and cannot be tried again for under 2 %."""
    sim = machine(OURS, lambda at: 0.0 if at < 500 else 0.98, guess_seconds=0.0)
    planner = sim.auto()
    sim.run(planner, 498)
    assert planner.gave_up
    assert planner.rounds["none"] > 400
    before = sim.seconds
    sim.run(planner, 500)
    assert 500 / (sim.seconds - before) > 1.3 * sim.plain


def test_it_notices_that_drafting_ceases_to_pay():
    sim = machine(OURS, lambda at: 0.98 if at < 500 else 0.0, guess_seconds=0.028)
    planner = sim.auto()
    sim.run(planner, 498)
    before = sim.seconds
    sim.run(planner, 500)
    assert 500 / (sim.seconds - before) > 0.93 * sim.plain  # what it won before may be spent on trying


def test_a_machine_slower_than_measured_changes_nothing():
    """Only ratios count: all passes take three times as long as the curve says."""
    rates = []
    for slow in (1.0, 3.0):
        sim = machine(OURS, 0.9, guess_seconds=0.028, slow=slow)
        rates.append(sim.run(sim.auto(), 600) / sim.plain)
    assert rates[1] == pytest.approx(rates[0], rel=0.1)


def test_a_free_drafter_is_preferred_when_it_is_as_good():
    sim = machine(OURS, 0.95, guess_seconds=0.0)
    slow = FakeDrafter(lambda tokens: 0 if sim._stands(len(tokens)) else 1, 0.95)
    slow.name = "slow"
    planner = Auto([sim.drafter, slow], Costs(OURS, {"fake": 0.0, "slow": 0.03}), draft_max=32)
    sim.run(planner, 300)
    assert planner.rounds["fake"] > 5 * planner.rounds.get("slow", 0)


def test_confidence_ends_a_draft():
    """A drafter that says when it does not know: drafts end there, not at a length."""
    sure = 4

    class Honest:
        name = "honest"

        def begin(self, prompt):
            pass

        def guesses(self, tokens):
            for i in range(100):
                yield Guess(0, 0.99 if i < sure else 0.05)

    auto = Auto([Honest()], Costs(OURS, {"honest": 0.028}), draft_max=32)
    for n in (1, 2, 4, 4, 4, 4):  # it starts with short drafts; now it has something to risk
        draft = Draft("honest", [Guess(0, 0.99)] * n, asked=n)
        seconds = {"draft_seconds": n * 0.028, "full_seconds": OURS.at(n + 1)}
        auto.learn(Round(0, draft, [Token(0, "draft")] * (n + 1), n, n, full_width=n + 1, **seconds))
    for planner in (auto, Fixed(Honest(), draft_max=32)):
        draft = planner.draft([0], 100)
        assert sure <= len(draft.guesses) <= sure + 1
        assert draft.asked == sure + 1


def test_fixed_follows_the_wanted_acceptance():
    """Draft & Verify's threshold: up after rejections, down after acceptance of drafts that confidence ended."""
    planner = Fixed(FakeDrafter(lambda _tokens: 0, 0.9), draft_max=8)
    draft = Draft("fake", [Guess(0, 0.9)] * 4, asked=4)
    planner.learn(Round(0, draft, [], tested=1, accepted=0))
    assert planner.threshold == pytest.approx(0.801)
    for _ in range(20):
        planner.learn(Round(0, draft, [], tested=4, accepted=4))
    assert planner.threshold < 0.8


def test_fallback_drops_the_guess_it_is_not_sure_of():
    guesses = iter([0.9, 0.9, 0.3])

    class Falling:
        name = "falling"

        def begin(self, prompt):
            pass

        def guesses(self, tokens):
            yield from (Guess(i, confidence) for i, confidence in enumerate(guesses))

    draft = Fallback(Falling()).draft([0], 100)
    assert (draft.ids, draft.asked) == ([0, 1], 3)


@pytest.mark.parametrize("room", [0, 1, 2, 5])
def test_no_planner_drafts_more_than_there_is_room_for(room):
    drafter = FakeDrafter(lambda _tokens: 0)
    planners = [Auto([drafter], Costs(FLAT, {"fake": s}), draft_max=32) for s in (0.0, 0.001)]
    for planner in (*planners, Fixed(drafter, draft_max=32), Fallback(drafter)):
        assert len(planner.draft([0], room).guesses) <= room


def test_explain_names_every_way_to_go_on():
    sim = machine(OURS, 0.9, guess_seconds=0.028)
    planner = sim.auto()
    sim.run(planner, 100)
    plain, drafted = planner.explain()
    assert plain["tokens_per_s"] == pytest.approx(sim.plain, rel=0.01)
    assert drafted["tokens_per_s"] > plain["tokens_per_s"]
    assert plain["rounds"] + drafted["rounds"] == sum(planner.rounds.values())


def test_curves():
    assert OURS.at(3) == pytest.approx((0.085 + 0.108) / 2)
    assert OURS.at(48) == pytest.approx(0.463 + 16 * (0.463 - 0.24) / 16)
    assert Curve((1, 2, 3), (0.1, 0.3, 0.2)).table(3) == [0.0, 0.1, 0.3, 0.3]
    assert Curve.from_dict(OURS.to_dict()) == OURS
    for n, seconds in (((2, 4), (1.0, 2.0)), ((1, 1), (1.0, 1.0)), ((1,), (0.0,)), ((1, 2), (1.0,))):
        with pytest.raises(ValueError, match=r"curve|takes time"):
            Curve(n, seconds)


def tiered_round(n, *, escalated, seconds):
    """`n` guesses judged by the slim verifier, all right; the last of them escalated or not."""
    draft = Draft("fake", [Guess(0, 0.95)] * n, slim=True, asked=n)
    full = OURS.at(2) if escalated else 0.0
    times = {"draft_seconds": n * 0.028, "slim_seconds": seconds, "full_seconds": full}
    counts = {"gated": n, "escalated": int(escalated), "slim_width": n, "full_width": 2 * int(escalated)}
    return Round(0, draft, [Token(0, "draft")] * n, n, n, **counts, **times)


@pytest.mark.parametrize("escalated", [True, False])
def test_a_slim_verifier_that_escalates_is_left_out(escalated):
    """Right drafts that the gate does not trust cost both passes: then the full model verifies at once."""
    slim = Curve(OURS.n, tuple(0.6 * seconds for seconds in OURS.seconds))
    planner = Auto([FakeDrafter(lambda _tokens: 0, 0.95)], Costs(OURS, {"fake": 0.028}, slim), draft_max=16)
    for _ in range(30):
        planner.learn(tiered_round(4, escalated=escalated, seconds=slim.at(4)))
    assert planner.draft([0], 100).slim is not escalated

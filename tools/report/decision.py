"""What rounds of two contestants that ran in turns decide, as benchmarks/comparison/decision.h has it: the same formulas,
margins and words, so that the page and the terminal never differ. The wheel of //python has this file too: it imports the standard
library alone."""
import dataclasses
import math

EQUAL_MARGIN = 0.02
ERROR_RATE = 0.05
MOST_ROUNDS = 1000


@dataclasses.dataclass
class Decision:
    outcome: str  # "faster", "slower", "equal" or "not decided"
    ratio: float  # geometric mean over rounds
    low: float    # 1 is outside of low to high where one was faster
    high: float
    more_rounds: int  # not decided: at least as many rounds more; 0: more than MOST_ROUNDS
    margin: float = EQUAL_MARGIN

    def describe(self, first, second):
        """The sentence of the terminal; the ratios are of `first`, whose name comes first unless it was slower."""
        if self.outcome == "faster":
            return f"{first} was {_lead(self.ratio)} {second}"
        if self.outcome == "slower":
            return f"{second} was {_lead(1 / self.ratio)} {first}"
        if self.outcome == "equal":
            return f"{first} and {second} are equal within {100 * self.margin:g} %"
        return f"not decided between {first} and {second}: {self.open_words()}"

    def open_words(self):
        """What follows "not decided"."""
        if self.more_rounds == 0:
            return f"more than {MOST_ROUNDS} rounds more"
        return f"at least {self.more_rounds} round{'' if self.more_rounds == 1 else 's'} more"


def _lead(ratio):
    if ratio >= 2:
        return f"{ratio:.1f} times as fast as"
    percent = 100 * (ratio - 1)
    return f"{percent:.{1 if percent < 0.95 else 0}f} % faster than"


def _beta_fraction(x, a, b):
    """The continued fraction of the incomplete beta function by Lentz's method (NIST DLMF 8.17.22)."""
    def not_zero(value):
        return 1e-300 if abs(value) < 1e-300 else value
    c, d = 1.0, 1 / not_zero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 10000):
        for term in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                     -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1 / not_zero(1 + term * d)
            c = not_zero(1 + term / c)
            fraction *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return fraction


def _incomplete_beta(x, a, b):
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(x, a, b) / a
    return 1 - front * _beta_fraction(1 - x, b, a) / b


def student_quantile(tail, degrees):
    def tail_of(t):
        return _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5) / 2
    low, high = 0.0, 1.0
    while tail_of(high) > tail:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if tail_of(middle) > tail:
            low = middle
        else:
            high = middle
    return high


def _outcome(mean, deviation, rounds, error, margin):
    def reach(tail):
        return student_quantile(tail, rounds - 1) * deviation / math.sqrt(rounds)
    if abs(mean) > reach(error / 2):
        return "faster" if mean > 0 else "slower"
    return "equal" if abs(mean) + reach(error) < math.log1p(margin) else "not decided"


def decide(ratios, decisions, margin=EQUAL_MARGIN):
    """Of ratios by round, the first contestant's speed over the second's, as one of so many decisions; needs one ratio."""
    logs = [math.log(ratio) for ratio in ratios]
    rounds = len(logs)
    mean = sum(logs) / rounds
    if rounds < 2:
        return Decision("not decided", math.exp(mean), 0.0, 0.0, 1, margin)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in logs) / (rounds - 1))
    error = ERROR_RATE / max(1, decisions)
    reach = student_quantile(error / 2, rounds - 1) * deviation / math.sqrt(rounds)
    outcome = _outcome(mean, deviation, rounds, error, margin)
    more = 0
    if outcome == "not decided":
        more = next((k for k in range(1, MOST_ROUNDS + 1)
                     if _outcome(mean, deviation, rounds + k, error, margin) != "not decided"), 0)
    return Decision(outcome, math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), more, margin)

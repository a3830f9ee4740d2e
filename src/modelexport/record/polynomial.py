"""Whole numbers in terms of axes whose size is open, such as `2·batch·sequence²`.

They are exact: sums and products are multiplied out, divisions that leave no remainder are carried out, and what has no
such form (`⌊height/2⌋`, `min(64, sequence)`) is one more unknown that is computed once the axes have sizes. Equal
polynomials compare equal, and one without axes is equal to the number that it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TypeAlias

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
# Longer ones are cut where people read them.
_SHOWN_TERMS = 6


@dataclass(frozen=True, slots=True)
class Function:
    """A number that is no sum of products: `floor` (of a quotient), `min` or `max` of polynomials."""

    name: str
    arguments: tuple[Polynomial, ...]

    def __str__(self) -> str:
        if self.name == "floor":
            factors = [f"({size})" if len(size.terms) > 1 else str(size) for size in self.arguments]
            return f"⌊{'/'.join(factors)}⌋"
        return f"{self.name}({', '.join(map(str, self.arguments))})"

    @property
    def expression(self) -> str:
        inner = [argument.expression for argument in self.arguments]
        return f"(({inner[0]})//({inner[1]}))" if self.name == "floor" else f"{self.name}({', '.join(inner)})"


Atom: TypeAlias = str | Function
Monomial: TypeAlias = tuple[tuple[Atom, int], ...]
ONE: Monomial = ()


@dataclass(frozen=True, eq=False)
class Polynomial:
    """A sum of products of axes. `terms`: what is multiplied, with its powers, and how often; sorted, none 0 times."""

    terms: tuple[tuple[Monomial, int], ...] = ()

    @classmethod
    def of(cls, size: Size) -> Polynomial:
        if isinstance(size, Polynomial):
            return size
        return cls(((ONE, int(size)),)) if size else cls()

    @classmethod
    def axis(cls, name: Atom) -> Polynomial:
        """One unknown: the size of an axis, or a function of such sizes."""
        return cls(((((name, 1),), 1),))

    @property
    def value(self) -> int | None:
        """The number, where no axis is left."""
        if not self.terms:
            return 0
        monomial, factor = self.terms[0]
        return factor if len(self.terms) == 1 and monomial == ONE else None

    @cached_property
    def axes(self) -> tuple[str, ...]:
        return tuple(sorted({name for atom in self._atoms() for name in _names(atom)}))

    @cached_property
    def extent(self) -> int:
        """How long it is when it is written out, in names and numbers."""
        inside = (atom for atom in self._atoms() if isinstance(atom, Function))
        parts = sum(argument.extent for atom in inside for argument in atom.arguments)
        return parts + sum(1 + len(monomial) for monomial, _ in self.terms)

    @property
    def degree(self) -> int:
        """The highest power of one atom: 2 of `batch*sequence^2`."""
        return max((power for monomial, _ in self.terms for _, power in monomial), default=0)

    def _atoms(self) -> Iterator[Atom]:
        yield from (atom for monomial, _ in self.terms for atom, _ in monomial)

    def at(self, sizes: Mapping[str, int]) -> Polynomial:
        """With these axes replaced by their sizes; others stay."""
        if not any(name in sizes for name in self.axes):
            return self
        total = Polynomial()
        for monomial, factor in self.terms:
            term = Polynomial.of(factor)
            for atom, power in monomial:
                term *= _replace_axes(atom, sizes) ** power
            total += term
        return total

    def __add__(self, other: Size) -> Polynomial:
        if not isinstance(other, int | Polynomial):
            return NotImplemented
        return sizes_sum((self, other))

    def __mul__(self, other: Size) -> Polynomial:
        if isinstance(other, int):
            # Much the most frequent product: the order of terms stays, so there is nothing to sort.
            return Polynomial(tuple((monomial, factor * other) for monomial, factor in self.terms if other))
        if not isinstance(other, Polynomial):
            return NotImplemented
        product: dict[Monomial, int] = {}
        for right, times in other.terms:
            for left, factor in self.terms:
                both = _multiply_monomials(left, right)
                product[both] = product.get(both, 0) + factor * times
        return _sort_terms(product)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Polynomial:
        return self * -1

    def __sub__(self, other: Size) -> Polynomial:
        return self + other * -1

    def __rsub__(self, other: Size) -> Polynomial:
        return -self + other

    def __pow__(self, power: int) -> Polynomial:
        # Powers are small (an axis squared), so repeated products beat anything clever.
        return reduce(lambda product, _: product * self, range(power), Polynomial.of(1))

    def __floordiv__(self, other: Size) -> Polynomial:
        return quotient(self, Polynomial.of(other))

    def __rfloordiv__(self, other: int) -> Polynomial:
        return quotient(Polynomial.of(other), self)

    def __mod__(self, other: Size) -> Polynomial:
        return self - (self // other) * other

    def __rmod__(self, other: int) -> Polynomial:
        return Polynomial.of(other) % self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Polynomial):
            return self.terms == other.terms
        return isinstance(other, int) and self.value == other

    def __hash__(self) -> int:
        return hash(self.terms) if self.value is None else hash(self.value)

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __str__(self) -> str:
        """For people: `2·batch·sequence² + 3`."""
        texts = [_term_text(monomial, factor) for monomial, factor in self.terms]
        return " + ".join(texts).replace("+ -", "- ") if texts else "0"

    def __repr__(self) -> str:
        return f"Polynomial({self.expression!r})"

    @property
    def short(self) -> str:
        more = len(self.terms) - _SHOWN_TERMS
        return str(self) if more <= 0 else f"{Polynomial(self.terms[:_SHOWN_TERMS])} + … {more} more"

    @property
    def expression(self) -> str:
        """For programs: `2*batch*sequence**2 + 3`. A name that is none in Python is in quotes."""
        return " + ".join(_term_expression(monomial, factor) for monomial, factor in self.terms) or "0"


Size: TypeAlias = int | Polynomial


def sizes_sum(sizes: Iterable[Size]) -> Polynomial:
    """The sum of many, in time that grows with all of their terms and no faster."""
    listed = list(sizes)
    if len(listed) == 1:
        return Polynomial.of(listed[0])
    summed: dict[Monomial, int] = {}
    for size in listed:
        for monomial, factor in Polynomial.of(size).terms:
            summed[monomial] = summed.get(monomial, 0) + factor
    return _sort_terms(summed)


def quotient(above: Polynomial, below: Polynomial) -> Polynomial:
    """Rounded down. Sizes are not negative, and axes are at least 1."""
    if not below:
        raise ZeroDivisionError("a size is divided by 0")
    exact = _divided(above, below)
    if exact is not None:
        return exact
    divisor = below.value
    if divisor is None or divisor < 0:
        return Polynomial.axis(Function("floor", (above, below)))
    # ⌊(4x + y)/4⌋ = x + ⌊y/4⌋: what divides goes in front of the brackets, so that equal sizes look equal.
    whole = Polynomial(tuple((monomial, factor // divisor) for monomial, factor in above.terms if factor // divisor))
    rest = above - whole * divisor
    if rest.value is not None:
        return whole + rest.value // divisor
    inner, within = _nested(rest)
    return whole + Polynomial.axis(Function("floor", (inner, Polynomial.of(within * divisor))))


def smallest(*sizes: Size) -> Polynomial:
    return _extreme("min", "max", sizes)


def largest(*sizes: Size) -> Polynomial:
    return _extreme("max", "min", sizes)


def _extreme(name: str, opposite: str, sizes: Iterable[Size]) -> Polynomial:
    choose: Callable[..., int] = min if name == "min" else max
    kept: list[Polynomial] = []
    # min(a, min(b, c)) is min(a, b, c).
    flat = (inner for size in map(Polynomial.of, sizes) for inner in _arguments(size, name) or (size,))
    for size in dict.fromkeys(flat):
        for index, other in enumerate(kept):
            # Two sizes that are a number apart can be compared, whatever their axes are.
            apart = (size - other).value
            if apart is not None:
                kept[index] = size if choose(0, apart) == apart else other
                break
        else:
            kept.append(size)
    # max(a, min(a, b)) is a, whatever b is.
    left = [
        size for size in kept if not any(other in _arguments(size, opposite) for other in kept if other is not size)
    ]
    if len(left) == 1:
        return left[0]
    return Polynomial.axis(Function(name, tuple(sorted(left, key=lambda argument: argument.expression))))


def _arguments(size: Polynomial, name: str) -> tuple[Polynomial, ...]:
    """Those of a size that is nothing but this function."""
    function = _only_function(size)
    return function.arguments if function is not None and function.name == name else ()


def _only_function(size: Polynomial) -> Function | None:
    if len(size.terms) != 1:
        return None
    monomial, factor = size.terms[0]
    if factor != 1 or len(monomial) != 1 or monomial[0][1] != 1:
        return None
    atom = monomial[0][0]
    return atom if isinstance(atom, Function) else None


def _nested(size: Polynomial) -> tuple[Polynomial, int]:
    """`⌊x/a⌋ + c` as what it is the quotient of, and `a`: quotients of quotients are quotients."""
    constant = dict(size.terms).get(ONE, 0)
    above, below = _arguments(size - constant, "floor") or (size, None)
    divisor = None if below is None else below.value
    return (size, 1) if divisor is None else (above + constant * divisor, divisor)


def _divided(above: Polynomial, below: Polynomial) -> Polynomial | None:
    """The quotient, if nothing is left over."""
    order = sorted({*above._atoms(), *below._atoms()}, key=_atom_key)

    def leading(size: Polynomial) -> tuple[Monomial, int]:
        return max(size.terms, key=lambda term: [dict(term[0]).get(atom, 0) for atom in order])

    first, factor = leading(below)
    # Long division: the leading term goes with each round, in one order of atoms, so that it comes to an end.
    result, rest = Polynomial(), above
    while rest:
        monomial, count = leading(rest)
        left = _divide_monomial(monomial, first)
        if left is None or count % factor:
            return None
        term = Polynomial(((left, count // factor),))
        result, rest = result + term, rest - term * below
    return result


def _divide_monomial(monomial: Monomial, part: Monomial) -> Monomial | None:
    powers = dict(monomial)
    for atom, power in part:
        powers[atom] = powers.get(atom, 0) - power
    if any(power < 0 for power in powers.values()):
        return None
    return tuple((atom, power) for atom, power in powers.items() if power)


def _multiply_monomials(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    powers = Counter(dict(left))
    powers.update(dict(right))
    return tuple(sorted(powers.items(), key=lambda item: _atom_key(item[0])))


def _sort_terms(terms: Mapping[Monomial, int]) -> Polynomial:
    """The highest powers first, then by name."""
    kept = [(monomial, factor) for monomial, factor in terms.items() if factor]
    return Polynomial(tuple(sorted(kept, key=_term_key) if len(kept) > 1 else kept))


def _term_key(term: tuple[Monomial, int]) -> tuple[int, list[tuple[str, int]]]:
    monomial, _ = term
    return -sum(power for _, power in monomial), [(_atom_key(atom), -power) for atom, power in monomial]


def _atom_key(atom: Atom) -> str:
    return atom if isinstance(atom, str) else f"{atom.name} {atom.expression}"


def _replace_axes(atom: Atom, sizes: Mapping[str, int]) -> Polynomial:
    if isinstance(atom, str):
        return Polynomial.of(sizes[atom]) if atom in sizes else Polynomial.axis(atom)
    arguments = [argument.at(sizes) for argument in atom.arguments]
    if atom.name == "floor":
        return quotient(*arguments)
    return smallest(*arguments) if atom.name == "min" else largest(*arguments)


def _names(atom: Atom) -> Iterator[str]:
    if isinstance(atom, str):
        yield atom
    else:
        yield from (name for argument in atom.arguments for name in argument.axes)


def _term_text(monomial: Monomial, factor: int) -> str:
    parts = [f"{atom}{str(power).translate(_SUPERSCRIPTS) if power > 1 else ''}" for atom, power in monomial]
    sign, size = "-" if factor < 0 else "", abs(factor)
    return sign + "·".join([str(size), *parts] if size != 1 or not parts else parts)


def _term_expression(monomial: Monomial, factor: int) -> str:
    parts = [f"{_atom_expression(atom)}{f'**{power}' if power > 1 else ''}" for atom, power in monomial]
    return "*".join([str(factor), *parts] if factor != 1 or not parts else parts)


def _atom_expression(atom: Atom) -> str:
    if isinstance(atom, Function):
        return atom.expression
    return atom if atom.isidentifier() else repr(atom)

"""Small products that stay in a processor's vector registers, written as LLVM code.

A product of a few rows with a matrix takes as long as reading the matrix, if a block of its sums is
kept in registers meanwhile. No compiler makes that of plain loops reliably, and which registers
there are depends on the processor: here the blocks are written out for each size, of vectors that
LLVM turns into whatever the processor has. Numbers are float32, addresses are integers, and nothing
is checked.

numba names what an intrinsic is given by the arguments of the function that writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target

from ...drafters.suffix.jit import emitted

# What numba compiles for, by which it also tells compiled code apart that it has kept.
_WIDE = "+avx512f" in str(cpu_target.target_context.codegen().magic_tuple())

LANES = 16 if _WIDE else 8
"""How many numbers a vector has."""

WIDEST = 128 // LANES
"""The most vectors that a row of a matrix has in `multiply` and `dots`."""

_SUMS = 16 if _WIDE else 12
"""How many vectors of sums are kept in registers, which have to hold some more beside them."""

_BYTES = 4

_LINE = 16
"""How many numbers come from memory at once: 64 bytes."""

_SECOND_CACHE = 2
"""Where to, as LLVM counts: the first has what is multiplied now."""

_INT, _FLOAT = ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_Row = list[Any]


def _together(vectors: int) -> int:
    """How many rows of so many vectors each are summed up at once."""
    return min(max(_SUMS // vectors, 1), 8)


TOGETHER = tuple(_together(max(vectors, 1)) for vectors in range(WIDEST + 1))
"""The same, by the number of vectors."""


@emitted
def longs(context: Any, address: Any) -> Any:
    """A pointer to 64-bit integers at an address."""
    return types.CPointer(types.int64)(types.int64), _cast(_INT)


@emitted
def floats(context: Any, address: Any) -> Any:
    """A pointer to float32 at an address."""
    return types.CPointer(types.float32)(types.int64), _cast(_FLOAT)


@emitted
def power_of_two(context: Any, exponent: Any) -> Any:
    """2^n as float32, for an int32 n from -126 to 127."""

    def write(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind = ir.IntType(32)
        bits = builder.shl(builder.add(given[0], kind(127)), kind(23))
        return builder.bitcast(bits, _FLOAT)

    return types.float32(types.int32), write


@emitted
def claimed(context: Any, address: Any) -> Any:
    """The number at an address before one is added to it, with no other thread in between."""

    def write(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = builder.inttoptr(given[0], _INT.as_pointer())
        return builder.atomic_rmw("add", place, _INT(1), "monotonic")

    return types.int64(types.int64), write


@emitted
def foreseen(context: Any, address: Any) -> Any:
    """The number at an address, to which another thread may be adding."""

    def write(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = builder.inttoptr(given[0], _INT.as_pointer())
        return builder.load_atomic(place, "monotonic", 8)

    return types.int64(types.int64), write


def _cast(kind: Any) -> Callable[..., Any]:
    def write(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], kind.as_pointer())

    return write


class _Writer:
    """Writes vector code at the end of a block.

    Args:
        builder: of llvmlite.
    """

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def load(self, kind: Any, address: Any, offset: int = 0) -> Any:
        """A number or vector at an address, so many numbers further on."""
        found = self.builder.load(self._at(kind, address, offset))
        found.align = _BYTES
        return found

    def store(self, value: Any, address: Any, offset: int = 0) -> None:
        """Write one there."""
        self.builder.store(value, self._at(value.type, address, offset)).align = _BYTES

    def _at(self, kind: Any, address: Any, offset: int) -> Any:
        return self.builder.inttoptr(self._offset(address, offset), kind.as_pointer())

    def _offset(self, address: Any, offset: int) -> Any:
        return self.builder.add(address, _INT(offset * _BYTES))

    def ask(self, address: Any, count: int) -> None:
        """Ask for so many numbers from an address on, which are not waited for."""
        kind, place = ir.IntType(32), ir.IntType(8).as_pointer()
        module, full = self.builder.module, "llvm.prefetch.p0i8"
        called = module.globals.get(full)
        if called is None:
            written = ir.FunctionType(ir.VoidType(), [place, kind, kind, kind])
            called = ir.Function(module, written, full)
        for offset in range(0, count, _LINE):
            where = self.builder.inttoptr(self._offset(address, offset), place)
            self.builder.call(called, [where, kind(0), kind(_SECOND_CACHE), kind(1)])

    def bytes_of(self, count: Any) -> Any:
        """How many bytes so many numbers have."""
        return self.builder.mul(count, _INT(_BYTES))

    def rows(self, address: Any, stride: Any, count: int) -> list[Any]:
        """The addresses of rows so many numbers apart."""
        found, step = [address], self.bytes_of(stride)
        while len(found) < count:
            found.append(self.builder.add(found[-1], step))
        return found

    def vectors(self, address: Any, count: int) -> _Row:
        """As many vectors, one after another."""
        return [self.load(_VECTOR, address, LANES * place) for place in range(count)]

    def spread(self, number: Any) -> Any:
        """A vector of one number."""
        nothing, place = ir.Constant(_VECTOR, ir.Undefined), ir.IntType(32)
        first = self.builder.insert_element(nothing, number, place(0))
        everywhere = ir.Constant(ir.VectorType(place, LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, nothing, everywhere)

    def fused(self, one: Any, other: Any, onto: Any) -> Any:
        """one * other + onto, rounded once."""
        return self._call("fma", _VECTOR, [one, other, onto])

    def total(self, vector: Any) -> Any:
        """The sum of a vector's numbers, halves first."""
        return self._call("vector.reduce.fadd", _FLOAT, [_FLOAT(0.0), vector], ("reassoc",))

    def _call(self, name: str, gives: Any, given: _Row, fastmath: tuple[str, ...] = ()) -> Any:
        full, module = f"llvm.{name}.v{LANES}f32", self.builder.module
        called = module.globals.get(full)
        if called is None:
            kind = ir.FunctionType(gives, [each.type for each in given])
            called = ir.Function(module, kind, full)
        return self.builder.call(called, given, fastmath=fastmath)

    def loop(
        self, times: Any, carried: list[_Row], body: Callable[[Any, list[_Row]], list[_Row]]
    ) -> list[_Row]:
        """Do something at least once, and hand on values from each time to the next.

        Args:
            times: how often.
            carried: the values to begin with.
            body: is given the number of the time, from 0, and the values, and returns the next.

        Returns:
            The last of them.
        """
        builder, before = self.builder, self.builder.block
        inside, after = (builder.append_basic_block() for _ in range(2))
        builder.branch(inside)
        builder.position_at_end(inside)
        turn = builder.phi(_INT)
        values = [[builder.phi(each.type) for each in row] for row in carried]
        found = body(turn, values)
        following = builder.add(turn, _INT(1))
        turn.add_incoming(_INT(0), before)
        turn.add_incoming(following, inside)
        for old, first, new in zip(values, carried, found, strict=True):
            for value, start, later in zip(old, first, new, strict=True):
                value.add_incoming(start, before)
                value.add_incoming(later, inside)
        builder.cbranch(builder.icmp_signed("<", following, times), inside, after)
        builder.position_at_end(after)
        return found


def _of_each_size(write: Callable[[_Writer, int, int, _Row], None], count: int) -> Any:
    """An intrinsic that is written out for every number of rows and of vectors a row.

    Args:
        write: writes it for some: given the writer, both numbers, and what else is given.
        count: how many integers are given.
    """

    def written(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        rows, vectors, *rest = given
        after, never = builder.append_basic_block(), builder.append_basic_block()
        size = builder.add(builder.mul(vectors, _INT(16)), rows)
        choice = builder.switch(size, never)
        for wide in range(1, WIDEST + 1):
            for high in range(1, _together(wide) + 1):
                case = builder.append_basic_block()
                choice.add_case(_INT(16 * wide + high), case)
                builder.position_at_end(case)
                write(_Writer(builder), high, wide, rest)
                builder.branch(after)
        builder.position_at_end(never)
        builder.unreachable()
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(*[types.int64] * count), written


def _multiplied(writer: _Writer, rows: int, vectors: int, given: _Row) -> None:
    left, stride, matrix, out, out_stride, depth, onto, ahead = given
    lefts = writer.rows(left, stride, rows)
    step = _INT(vectors * LANES * _BYTES)
    nothing = ir.Constant(_VECTOR, [0.0] * LANES)

    def body(turn: Any, sums: list[_Row]) -> list[_Row]:
        past = writer.builder.mul(turn, step)
        writer.ask(writer.builder.add(ahead, past), vectors * LANES)
        right = writer.vectors(writer.builder.add(matrix, past), vectors)
        further = writer.bytes_of(turn)
        found = []
        for address, row in zip(lefts, sums, strict=True):
            place = writer.builder.add(address, further)
            factor = writer.spread(writer.load(_FLOAT, place))
            found.append(
                [writer.fused(factor, each, own) for each, own in zip(right, row, strict=True)]
            )
        return found

    sums = writer.loop(depth, [[nothing] * vectors for _ in range(rows)], body)
    before = writer.builder.icmp_signed("!=", onto, _INT(0))
    for address, row in zip(writer.rows(out, out_stride, rows), sums, strict=True):
        for place, each in enumerate(row):
            there = writer.load(_VECTOR, address, LANES * place)
            first = writer.builder.select(before, there, nothing)
            writer.store(writer.builder.fadd(first, each), address, LANES * place)


def _dotted(writer: _Writer, rows: int, vectors: int, given: _Row) -> None:
    left, stride, matrix, out, out_stride, count, ahead = given
    lefts = [writer.vectors(address, vectors) for address in writer.rows(left, stride, rows)]
    outs = writer.rows(out, out_stride, rows)
    step = _INT(vectors * LANES * _BYTES)

    def body(turn: Any, nothing: list[_Row]) -> list[_Row]:
        past = writer.builder.mul(turn, step)
        writer.ask(writer.builder.add(ahead, past), vectors * LANES)
        right = writer.vectors(writer.builder.add(matrix, past), vectors)
        further = writer.bytes_of(turn)
        for row, address in zip(lefts, outs, strict=True):
            found = writer.builder.fmul(row[0], right[0])
            for one, other in zip(row[1:], right[1:], strict=True):
                found = writer.fused(one, other, found)
            writer.store(writer.total(found), writer.builder.add(address, further))
        return nothing

    writer.loop(count, [], body)


@emitted
def multiply(
    context: Any,
    rows: Any,
    vectors: Any,
    left: Any,
    stride: Any,
    matrix: Any,
    out: Any,
    out_stride: Any,
    depth: Any,
    onto: Any,
    ahead: Any,
) -> Any:
    """Up to `TOGETHER` rows of X W, added to what is there unless `onto` is 0.

    X is [rows, depth], rows `stride` numbers apart, W [depth, vectors * LANES] without gaps, and
    the product's rows are `out_stride` apart; sums are made in the order of the depth, at least 1.
    As much as W is meanwhile asked for from the address `ahead` on, whatever is there: processors
    look ahead by themselves, but not beyond a page, and not far enough while sums are made.
    """
    return _of_each_size(_multiplied, 10)


@emitted
def dots(
    context: Any,
    rows: Any,
    vectors: Any,
    left: Any,
    stride: Any,
    matrix: Any,
    out: Any,
    out_stride: Any,
    count: Any,
    ahead: Any,
) -> Any:
    """Up to `TOGETHER` rows of X K^T, for X and K [count, vectors * LANES]: see `multiply`."""
    return _of_each_size(_dotted, 9)

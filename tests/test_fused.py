"""Verification from raw logits against the readable reference: verdicts, distributions, and soundness."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outrider import verification
from outrider.config.params import SamplingParams
from outrider.random import Enumerator, Philox4x32, RoundDraws, inverse_cdf, round_keys
from outrider.types.records import Distributions, DraftProposal, Prefix, SequenceState
from outrider.verification import METHODS, BlockVerification, fused, lazy, verify
from outrider.verification.fused import verify_logits
from outrider.verification.plain import PlainChains, stop, stop_distribution

EDGE = 1e-6


@dataclass(frozen=True)
class Case:
    proposal: DraftProposal
    logits: Tensor
    temperature: Tensor | float | None

    def target(self) -> Tensor:
        """The target's distributions in float64: the truth that both paths round."""
        scores = self.logits.double()
        if isinstance(self.temperature, Tensor):
            scores = scores / self.temperature[:, None, None]
        elif self.temperature is not None:
            scores = scores / self.temperature
        return scores.softmax(-1)


def random_case(rng: np.random.Generator, sizes: tuple[int, ...] = (7, 300, 5_000, 50_000)) -> Case:
    """Drafts that are kept often, of any shape, dtype, temperature and kind."""
    batch, width = int(rng.choice([1, 3, 8])), int(rng.integers(0, 7))
    size = int(rng.choice(sizes))
    dtype = rng.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16])
    lengths = np.full(batch, width) if rng.random() < 0.5 else rng.integers(0, width + 1, batch)
    temperature: Any = rng.choice([None, 0.7, 1.6, "each"])
    if temperature == "each":
        temperature = torch.from_numpy(rng.uniform(0.5, 2, batch))
    logits = torch.from_numpy(rng.normal(0, 3, (batch, width + 1, size))).to(dtype)
    # A model that rules tokens out.
    logits[torch.from_numpy(rng.random(logits.shape) < 0.05)] = -torch.inf
    logits[..., int(rng.integers(size))] = 1.5
    case = Case(
        DraftProposal(torch.zeros(batch, 0, dtype=torch.int64), lengths, None), logits, temperature
    )
    if width == 0:
        return case
    near = case.target()[:, :width].log() + torch.from_numpy(
        rng.normal(0, 0.5, (batch, width, size))
    )
    probs = near.softmax(-1)
    tokens = torch.from_numpy(rng.random((batch, width)))
    tokens = torch.stack([inverse_cdf(probs[:, i], tokens[:, i]) for i in range(width)], 1)
    if rng.random() < 0.25:
        distributions = Distributions(point_masses=probs.argmax(-1))
        tokens = distributions.point_masses
    else:
        distributions = Distributions(probs=probs.to(torch.promote_types(dtype, torch.float32)))
    return Case(DraftProposal(tokens, lengths, distributions), logits, temperature)


class Noted:
    """Draws by Philox that remember each distribution's edges and where its uniforms fell."""

    def __init__(self, batch: int, width: int, seed: int) -> None:
        states = [
            SequenceState(Prefix(str(i), [1]), 1, SamplingParams(), frozenset(), seed + i)
            for i in range(batch)
        ]
        self.uniforms = torch.from_numpy(Philox4x32().uniforms(round_keys(states, width)[0]))
        self._draws = RoundDraws(Philox4x32(), None, self.uniforms)
        self.near: list[Tensor] = []

    @property
    def stop_uniforms(self) -> Tensor:
        return self.uniforms[:, 0]

    def stop(self, distributions: Tensor) -> Tensor:
        return self._note(distributions, self.uniforms[:, 0], self._draws.stop(distributions))

    def token(self, distributions: Tensor) -> Tensor:
        return self._note(distributions, self.uniforms[:, 1], self._draws.token(distributions))

    def _note(self, distributions: Tensor, uniforms: Tensor, drawn: Tensor) -> Tensor:
        edges = distributions.double().cumsum(-1)
        gaps = (edges / edges[:, -1:] - uniforms[:, None]).abs().amin(-1)
        self.near.append(gaps < EDGE)
        return drawn


def disagreements(
    cases: int, seed: int, method: str, sizes: tuple[int, ...], faulty: Any = None
) -> dict[str, int]:
    """How often the fast path and the reference differ, near an edge and elsewhere."""
    rng = np.random.default_rng(seed)
    counts = {"draws": 0, "near": 0, "differ": 0, "differ far from an edge": 0}
    for number in range(cases):
        case = random_case(rng, sizes)
        batch, width = case.proposal.tokens.shape
        slow, quick = Noted(batch, width, number), Noted(batch, width, number)
        expected = verify(case.proposal, case.target(), METHODS[method], slow)
        kind = faulty or METHODS[method]
        found, witness = verify_logits(case.proposal, case.logits, case.temperature, kind, quick)
        assert bool(witness.isfinite().all())
        assert witness.shape == (batch, width + 1)
        nodes = found.node != expected.node
        tokens = (found.next_token != expected.next_token) & ~nodes
        near_node = slow.near[0] if width else torch.zeros(batch, dtype=torch.bool)
        near_token = slow.near[-1]
        counts["draws"] += batch * (1 + bool(width))
        counts["near"] += int(near_node.sum() + near_token.sum())
        counts["differ"] += int(nodes.sum() + tokens.sum())
        far = (nodes & ~near_node) | (tokens & ~near_token)
        counts["differ far from an edge"] += int(far.sum())
    return counts


@pytest.mark.parametrize("method", METHODS)
def test_the_fast_path_gives_the_verdicts_of_the_reference(method: str) -> None:
    counts = disagreements(60, 3, method, (7, 300, 5_000, 50_000))
    assert counts["differ far from an edge"] == 0, counts
    # Edges of a distribution of 50,000 tokens lie close together: some uniforms are near one.
    assert counts["near"] <= counts["draws"] // 20, counts
    assert counts["differ"] <= 3, counts


def mixed_case(rng: np.random.Generator, sizes: tuple[int, ...]) -> Case:
    """Rows some of whose tokens were drawn and some proposed outright, in any order."""
    while True:
        case = random_case(rng, sizes)
        distributions, tokens = case.proposal.distributions, case.proposal.tokens
        if distributions is not None and distributions.probs is not None and tokens.shape[1]:
            break
    batch, width = tokens.shape
    order = rng.permuted(np.tile(np.arange(width), (batch, 1)), axis=1)
    distributions = Distributions(
        probs=distributions.probs.gather(
            1, torch.from_numpy(order)[..., None].expand_as(distributions.probs)
        )
    )
    rows = np.argsort(order, axis=1)
    rows[rng.random((batch, width)) < 0.5] = -1
    likeliest = case.target()[:, :width].argmax(-1)
    tokens = torch.where(torch.from_numpy(rows < 0), likeliest, tokens)
    proposal = DraftProposal(tokens, case.proposal.lengths, distributions, distribution_rows=rows)
    return Case(proposal, case.logits, case.temperature)


def dense(case: Case, sound: bool = True) -> tuple[DraftProposal, Tensor]:
    """The same with point masses written out as distributions."""
    proposal, rows = case.proposal, torch.from_numpy(case.proposal.distribution_rows)
    probs = proposal.distributions.probs
    own = probs.gather(1, rows.clip(0)[..., None].expand(-1, -1, probs.shape[2]))
    point_masses = torch.zeros_like(own).scatter_(2, proposal.tokens[..., None], 1)
    distributions = Distributions(
        probs=torch.where((rows < 0)[..., None], point_masses, own) if sound else own
    )
    return DraftProposal(proposal.tokens, proposal.lengths, distributions), case.target()


@pytest.mark.parametrize("sound", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_drawn_tokens_beside_point_masses_get_the_verdicts_of_the_reference(
    method: str, sound: bool
) -> None:
    """Where point masses are taken for what else was drawn there, verdicts are seen to differ."""
    rng = np.random.default_rng(7)
    differ = 0
    for number in range(60):
        case = mixed_case(rng, (7, 300, 5_000))
        batch, width = case.proposal.tokens.shape
        slow, quick = Noted(batch, width, number), Noted(batch, width, number)
        expected = verify(*dense(case, sound), METHODS[method], slow)
        found, _ = verify_logits(
            case.proposal, case.logits, case.temperature, METHODS[method], quick
        )
        nodes = (found.node != expected.node) & ~slow.near[0]
        tokens = (found.next_token != expected.next_token) & (found.node == expected.node)
        differ += int(nodes.sum() + (tokens & ~slow.near[1]).sum())
        if sound:
            torch.testing.assert_close(found.ceiling, expected.ceiling, atol=1e-4, rtol=1e-4)
    assert (differ == 0) == sound


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kept", [True, False], ids=["powers kept", "raised again"])
def test_every_way_of_holding_the_distributions_gives_the_same_verdicts(
    method: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small rounds through the code for large ones, one and several rows at a time."""
    monkeypatch.setattr(lazy, "_NUMPY", 0)
    monkeypatch.setattr(lazy, "_KEPT", 1 << 20 if kept else 0)
    monkeypatch.setattr(lazy, "_AT_A_TIME", 600)
    counts = disagreements(120, 4, method, (7, 300))
    assert counts["differ far from an edge"] == 0, counts
    assert counts["near"] <= counts["draws"] // 50, counts


class WeightForgotten(BlockVerification):
    def stop_edges(self, chains: PlainChains, uniforms: Any) -> Any:
        edges, _ = super().stop_edges(chains, uniforms)
        return edges, [[1.0] * len(row) for row in edges]


class SumsLeftOut(BlockVerification):
    """Takes every head's bound for the head."""

    def stop_edges(self, chains: PlainChains, uniforms: Any) -> Any:
        loose = PlainChains(chains.ratios, lambda rows, node, weights: weights)
        return super().stop_edges(loose, uniforms)


class NextRowSummed(BlockVerification):
    def stop_edges(self, chains: PlainChains, uniforms: Any) -> Any:
        def later(rows: list[int], node: int, weights: list[float]) -> list[float]:
            return chains.excess(rows, node - 1, weights)

        return super().stop_edges(PlainChains(chains.ratios, later), uniforms)


def wrong_row(distributions: type) -> Any:
    """Distributions whose rows are normalised by the next row's mass."""
    make = distributions.of

    def of(logits: Tensor, scale: Any) -> Any:
        found = make(logits, scale)
        found.mass[:] = np.roll(np.asarray(found.mass), 1, axis=0)
        return found

    return staticmethod(of)


def test_planted_faults_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for fault in (WeightForgotten(), SumsLeftOut(), NextRowSummed()):
        found = disagreements(40, 5, "block", (300,), fault)
        assert found["differ far from an edge"] > 0, (fault, found)
    with monkeypatch.context() as patch:
        patch.setattr(lazy.KeptLaws, "of", wrong_row(lazy.KeptLaws))
        wrong = disagreements(40, 5, "token", (300,))
    assert wrong["differ far from an edge"] > 0, wrong
    with monkeypatch.context() as patch:
        patch.setattr(lazy, "_NUMPY", 0)
        patch.setattr(
            lazy, "_take", lambda rows, index: rows.index_select(0, torch.as_tensor(index * 0))
        )
        wrong = disagreements(40, 5, "token", (300,))
    assert wrong["differ far from an edge"] > 0, wrong


class CountedSums:
    """Sums that are no more than the weights, as those of (w P - Q)+ are."""

    def __init__(self, masses: Any) -> None:
        self.masses = masses
        self.made = 0

    def __call__(self, rows: list[int], node: int, weights: list[float]) -> list[float]:
        self.made += len(rows)
        return [w * float(self.masses[row, node]) for row, w in zip(rows, weights, strict=True)]


@pytest.mark.parametrize("method", METHODS)
def test_edges_found_until_the_draw_resolves_draw_as_the_whole_distribution(method: str) -> None:
    """The same node for every uniform, and for block fewer sums."""
    rng = np.random.default_rng(11)
    kind = METHODS[method]
    whole = resolved = 0
    uniforms = np.linspace(0, 1, 101)[:-1].tolist()
    for _ in range(60):
        lengths = rng.integers(0, 6, 4)
        ratios = [rng.choice([0.0, 0.3, 0.8, 1.0, 1.5, 3.0], length).tolist() for length in lengths]
        sums = CountedSums(rng.random((4, 6)) * rng.choice([0, 0.3, 1], (4, 6)))
        chains = PlainChains(ratios, sums)
        edges, weights = kind.stop_edges(chains, None)
        whole += sums.made * len(uniforms)
        sums.made = 0
        distributions = np.array([stop_distribution(row, 6) for row in edges])
        assert (distributions >= 0).all()
        assert abs(distributions.sum(1) - 1).max() < 1e-15
        assert (distributions[np.arange(7) > lengths[:, None]] == 0).all()
        for uniform in uniforms:
            found, same = kind.stop_edges(chains, [uniform] * 4)
            assert same == weights
            nodes = [stop(row, uniform) for row in found]
            assert nodes == [stop(row, uniform) for row in edges]
            inverted = (distributions.cumsum(1) <= uniform).sum(1)
            near = (abs(distributions.cumsum(1) - uniform) < 1e-12).any(1)
            assert ((inverted == nodes) | near).all()
        resolved += sums.made
    assert (whole > 0) == isinstance(kind, BlockVerification)
    assert resolved <= 0.7 * whole


def first_tokens(
    logits: Tensor, drafts: Tensor, tokens: tuple[int, ...], temperature: Any, method: str, cut: int
) -> dict[tuple[int, ...], float]:
    """The exact distribution of the first `cut` tokens that a round emits when it drafts `tokens`.

    Where a round emits fewer, the target's own distribution completes them.
    """
    distribution: dict[tuple[int, ...], float] = {}
    width = len(tokens)
    target = (logits.double() / temperature).softmax(-1)
    pending: list[tuple[int, ...]] = [()]
    rows = [0]
    for index in tokens:
        rows.append(rows[-1] * logits.shape[-1] + index + 1)
    while pending:
        path = pending.pop()
        chance = Enumerator([path])
        states = [SequenceState(Prefix("a", [1]), 1, SamplingParams(), frozenset(), 0)]
        draws = RoundDraws(chance, round_keys(states, width)[0], None)
        distributions = torch.stack([drafts[row] for row in rows[:-1]])[None]
        proposal = DraftProposal(
            torch.tensor([tokens]), np.array([width]), Distributions(probs=distributions)
        )
        verdict, _ = verify_logits(
            proposal, logits[rows][None], temperature, METHODS[method], draws
        )
        pending += [other for _, other in chance.siblings]
        emitted = (*tokens[: int(verdict.node)], int(verdict.next_token))
        weight = chance.probability[0]
        for rest in itertools.product(range(logits.shape[-1]), repeat=max(0, cut - len(emitted))):
            whole, mass, row = (*emitted, *rest), weight, 0
            for position, token in enumerate(whole[:cut]):
                if position >= len(emitted):
                    mass *= float(target[row, token])
                row = row * logits.shape[-1] + token + 1
            distribution[whole[:cut]] = distribution.get(whole[:cut], 0.0) + mass
    return distribution


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("held", ["numpy", "kept", "raised again"])
def test_the_distribution_of_a_round_is_the_targets(
    method: str, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By exact enumeration over drafts, stops and tokens: V = 3, two drafts, float64 logits."""
    if held != "numpy":
        monkeypatch.setattr(lazy, "_NUMPY", 0)
    if held == "raised again":
        monkeypatch.setattr(lazy, "_KEPT", 0)
    rng = np.random.default_rng(6)
    size, width, temperature = 3, 2, 0.8
    # Rows by prefix: 0 is empty, and the children of a row r are 3 r + 1, 2, 3.
    logits = torch.from_numpy(rng.normal(0, 2, (13, size)))
    drafts = torch.from_numpy(rng.normal(0, 2, (13, size))).softmax(-1)
    target = (logits / temperature).softmax(-1)
    found: dict[tuple[int, ...], float] = {}
    for tokens in itertools.product(range(size), repeat=width):
        drafted = float(drafts[0, tokens[0]] * drafts[tokens[0] + 1, tokens[1]])
        distribution = first_tokens(logits, drafts, tokens, temperature, method, width + 1)
        for emitted, mass in distribution.items():
            found[emitted] = found.get(emitted, 0.0) + drafted * mass
    error = 0.0
    for a, b, c in itertools.product(range(size), repeat=3):
        exact = float(target[0, a] * target[a + 1, b] * target[(a + 1) * size + b + 1, c])
        error = max(error, abs(found[a, b, c] - exact))
    assert len(found) == size**3
    assert error < 1e-12


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "nothing finite"])
@pytest.mark.parametrize("size", [7, 30_000])
@pytest.mark.parametrize("method", METHODS)
def test_the_witness_tells_of_unsound_rows(bad: float, size: int, method: str) -> None:
    logits = torch.randn(2, 4, size, generator=torch.Generator().manual_seed(0))
    logits[1, 2] = bad
    if np.isnan(bad):
        logits[1, 2, 1:] = 0
    distributions = torch.full((2, 3, size), 1 / size)
    proposal = DraftProposal(
        torch.full((2, 3), 1), np.array([3, 3]), Distributions(probs=distributions)
    )
    verdict, witness = verify_logits(proposal, logits, None, METHODS[method], Noted(2, 3, 0))
    unsound = torch.zeros(2, 4, dtype=torch.bool)
    unsound[1, 2] = True
    assert torch.equal(~witness.isfinite(), unsound)
    assert ((verdict.next_token >= 0) & (verdict.next_token < size)).all()
    assert ((verdict.node >= 0) & (verdict.node <= 3)).all()


@pytest.mark.parametrize("size", [5_000, 16_384, 50_257])
def test_wide_distributions_are_drawn_from_where_there_is_mass(size: int) -> None:
    rng = np.random.default_rng(7)
    distributions = rng.gamma(0.02, size=(200, size)) * (rng.random((200, size)) < 0.01)
    distributions[:, -1] = rng.random(200) < 0.5
    distributions[0] = 0
    distributions[0, -1] = 1e-300
    uniforms = rng.random(200)
    uniforms[:4] = uniforms[4:8] = [0.0, 1 - 2.0**-53, 2.0**-53, 0.5]
    wide = torch.from_numpy(distributions)
    found = inverse_cdf(wide, torch.from_numpy(uniforms))
    assert (distributions[np.arange(200), found] > 0).all()
    # Whatever the batch, and whatever the library.
    alone = [
        int(inverse_cdf(wide[i : i + 1], torch.from_numpy(uniforms[i : i + 1]))) for i in range(40)
    ]
    assert alone == found[:40].tolist()
    running = distributions.cumsum(-1)
    drawn = running[np.arange(200), found] / running[:, -1]
    before = drawn - distributions[np.arange(200), found] / running[:, -1]
    assert ((before - 1e-12 <= uniforms) & (uniforms <= drawn + 1e-12)).all()


@pytest.mark.parametrize("method", METHODS)
def test_the_code_for_devices_gives_the_same_verdicts(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small arrays in torch, nothing decided on the host, as on CUDA: here on the CPU."""
    monkeypatch.setattr(fused, "on_host", lambda array: False)
    monkeypatch.setattr(lazy, "on_host", lambda array: False)
    counts = disagreements(120, 8, method, (7, 300))
    assert counts["differ far from an edge"] == 0, counts
    assert counts["near"] <= counts["draws"] // 50, counts


KERNELS = """
import torch
from outrider.verification import fused, kernels, lazy
from tests.test_fused import disagreements

random = torch.Generator().manual_seed(0)
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    for size in (7, 4096, 10_000):
        logits = (torch.randn(5, size, generator=random, dtype=torch.float64) * 4).to(dtype)
        logits[torch.rand(5, size, generator=random) < 0.1] = -torch.inf
        logits[:, 0] = 1
        logits[1, 4096:] = -torch.inf
        draft = torch.randn(3, size, generator=random, dtype=torch.float64).softmax(-1).float()
        each = torch.rand(5, 1, generator=random).to(torch.promote_types(dtype, torch.float32))
        for scale in (1.25, each + 0.5):
            expected = lazy.LazyLaws(logits, scale, *lazy.normalisers(logits, scale))
            peak, mass = kernels.normalisers(logits, scale)
            torch.testing.assert_close(peak, expected.peak)
            torch.testing.assert_close(mass, expected.mass)
            index, column = torch.tensor([4, 0, 1]), torch.tensor([2, 2, 0])
            weight = torch.tensor([0.3, 0.9, 1.0], dtype=torch.float64)
            sums = expected.excess(index.numpy(), weight.numpy(), draft, column.numpy())
            found = kernels.excess(
                logits, scale, peak, index, weight / mass[index, 0], draft, column
            )
            assert found.dtype == torch.float64
            torch.testing.assert_close(found, torch.from_numpy(sums), rtol=1e-5, atol=1e-7)

bad = torch.zeros(4, 5000)
bad[0, 3], bad[1, 3], bad[2] = torch.nan, torch.inf, -torch.inf
assert kernels.normalisers(bad, 1.0)[1].isfinite()[:, 0].tolist() == [False, False, False, True]

fused.on_host = lazy.on_host = lambda array: False
lazy._has_kernels = lambda logits: True
for method in ("token", "block"):
    counts = disagreements(10, 9, method, (7, 5000))
    assert counts["differ far from an edge"] == 0, counts
"""


COMPILED = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from outrider.verification import kernels

for logits in ("fp16", "bf16", "fp32", "fp64"):
    wide = "fp64" if logits == "fp64" else "fp32"
    given = {"logits": f"*{logits}", "draft": "*fp32", "index": "*i64", "column": "*i64"}
    for kernel in (kernels._normalise, kernels._exceed):
        kinds = {
            name: given.get(name, "i32" if name.endswith(("size", "stride")) else f"*{wide}")
            for name in kernel.arg_names
            if name != "BLOCK"
        }
        source = ASTSource(kernel, {**kinds, "BLOCK": "constexpr"}, {"BLOCK": kernels._BLOCK})
        assert "ptx" in compile(source, target=GPUTarget("cuda", 90, 32)).asm
"""


def test_the_kernels_compile_for_a_device() -> None:
    """The interpreter takes what the compiler does not, such as annotations of another module."""
    pytest.importorskip("triton")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", COMPILED], check=True, timeout=300, env=environment)


def test_without_kernels_that_run_torch_is_used_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No compiler, or a Triton that does not know the device: here one without kernels at all."""
    pytest.importorskip("triton")
    lazy._builds_kernels.cache_clear()
    monkeypatch.delattr(verification, "kernels", raising=False)
    monkeypatch.setitem(sys.modules, "outrider.verification.kernels", None)
    device = torch.device("cpu")
    with caplog.at_level("WARNING"):
        assert [lazy._builds_kernels(device) for _ in range(3)] == [False] * 3
    (record,) = caplog.records
    assert "do not run on cpu; torch is used: ModuleNotFoundError" in record.getMessage()
    lazy._builds_kernels.cache_clear()
    # And the code for devices takes that for an answer.
    monkeypatch.setattr(lazy, "_has_kernels", lambda logits: lazy._builds_kernels(logits.device))
    test_the_code_for_devices_gives_the_same_verdicts("block", monkeypatch)
    lazy._builds_kernels.cache_clear()


def test_the_kernels_are_their_readable_twins() -> None:
    """In Triton's interpreter, which needs no GPU but must be asked for before Triton is loaded."""
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", KERNELS], check=True, timeout=300, env=environment)

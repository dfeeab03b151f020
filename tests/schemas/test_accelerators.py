"""The accelerator table: names that other software writes find their rows, and what nobody knows stays unknown."""

import pytest

from schemas.accelerators import ACCELERATORS, candidates, lookup

CERTAINTIES = {"vendor", "secondary", "memory", "unknown"}


# Names as drivers, exporters, labels and schedulers write them (samples of DCGM, nvidia-smi, GPU feature discovery, Slurm, openb).
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA-H100-80GB-HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA-A100-SXM4-40GB-SHARED", "A100-SXM4-40GB"),
        ("Tesla T4", "T4"),
        ("Tesla-T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("Tesla P100-PCIE-16GB", "P100-PCIe-16GB"),
        ("V100M16", "V100-SXM2-16GB"),
        ("V100M32", "V100-SXM2-32GB"),
        ("T4", "T4"),
        ("A10", "A10"),
        ("A10G", "A10G"),
        ("l40s", "L40S"),
        ("L40", "L40"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090-24GB"),
        ("rtx4090", "RTX-4090-24GB"),
        ("NVIDIA RTX A6000", "RTX-A6000-48GB"),
        ("Ascend910B3", "Ascend-910B3-64GB"),
        ("AMD Instinct MI300X", "MI300X-192GB"),
        ("MI250", "MI250-128GB"),
        ("tpu-v5p-slice", "TPU v5p"),
        ("DCU-K100-64GB", "DCU-K100-64GB"),
        ("G2", "G2"),
    ],
)
def test_a_name_that_means_one_card(name: str, model: str) -> None:
    found = lookup(name)
    assert found is not None
    assert found.model == model
    assert candidates(name) == (found,)


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("A100", ["A100-PCIe-40GB", "A100-SXM4-40GB", "A100-PCIe-80GB", "A100-SXM4-80GB"]),
        ("a100", ["A100-PCIe-40GB", "A100-SXM4-40GB", "A100-PCIe-80GB", "A100-SXM4-80GB"]),
        ("a100_80", ["A100-PCIe-80GB", "A100-SXM4-80GB"]),
        ("A100-SXM4", ["A100-SXM4-40GB", "A100-SXM4-80GB"]),
        ("P100", ["P100-SXM2-16GB", "P100-PCIe-16GB"]),
        ("H20", ["H20-SXM-96GB", "H20-SXM-141GB"]),
        ("Ascend 910B", ["Ascend-910B1-64GB", "Ascend-910B2-64GB", "Ascend-910B3-64GB", "Ascend-910B4-32GB"]),
    ],
)
def test_a_name_that_means_several_is_not_narrowed(name: str, models: list[str]) -> None:
    assert [a.model for a in candidates(name)] == models
    assert lookup(name) is None


@pytest.mark.parametrize(
    "name",
    ["", "80GB", "SXM4", "pcie", "NVIDIA", "rtx", "rtx30", "gpu", "A1000", "A100-SXM4-80GB-MIG-1g.10gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "910Awn-Ascend-V1", "T4 T5"],
)  # fmt: skip
def test_a_name_that_fits_nothing_is_unknown(name: str) -> None:
    assert candidates(name) == ()
    assert lookup(name) is None


def test_every_row_is_found_by_its_own_name_in_any_writing() -> None:
    for model, row in ACCELERATORS.items():
        for name in (
            model,
            model.lower(),
            model.upper(),
            model.replace("-", " "),
            model.replace("-", "_"),
            f"{row.vendor} {model}",
        ):
            assert lookup(name) is row, name


def test_one_measure_for_all_makes() -> None:
    def speed(model: str) -> float | None:
        return ACCELERATORS[model].speed_tflops

    assert speed("H100-SXM5-80GB") == 989.4  # bf16, dense (data sheet: 1,979 with sparsity)
    assert speed("V100-SXM2-16GB") == 125.0  # no bf16: fp16
    assert speed("Gaudi2-96GB") == 432.0  # bf16 only
    assert (
        speed("MI100-32GB")
        == ACCELERATORS["MI100-32GB"].bf16_dense_tflops
        != ACCELERATORS["MI100-32GB"].fp16_dense_tflops
    )


def test_what_nobody_published_is_none_and_never_zero() -> None:
    for model in ("G1", "G2", "G3"):
        row = ACCELERATORS[model]
        assert row.certainty == "unknown"
        assert row.speed_tflops is row.memory_gib is row.memory_bandwidth_gb_s is row.tdp_w is None
        assert row.memory_bytes == 0  # as records write an unknown memory
    assert ACCELERATORS["C550-64GB"].speed_tflops is None
    figures = [
        f
        for row in ACCELERATORS.values()
        for f in (
            row.memory_gib,
            row.fp16_dense_tflops,
            row.bf16_dense_tflops,
            row.fp8_dense_tflops,
            row.int8_dense_tops,
            row.tdp_w,
        )
    ]
    assert all(f is None or f > 0 for f in figures)


def test_memory_in_bytes() -> None:
    assert ACCELERATORS["A100-SXM4-80GB"].memory_bytes == 80 << 30


def test_every_row_names_its_source_and_certainty() -> None:
    for row in ACCELERATORS.values():
        assert row.source
        assert row.certainty in CERTAINTIES
        assert row.confidence in {"high", "medium", "low"}


def test_aliases_name_rows_that_exist() -> None:
    from schemas.accelerators import _aliases

    assert all(model in ACCELERATORS for models in _aliases().values() for model in models)

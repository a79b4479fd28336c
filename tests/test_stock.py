"""What llama.cpp's speculative example prints, and how we start it."""

from __future__ import annotations

import pytest

from viasd_edge.errors import NativeLibraryError
from viasd_edge.stock import PEER, SpeculativeReport, StockSpeculative

LOG = """\
0.00.012.345 I encoded  150 tokens in    2.512 seconds, speed:   59.713 t/s
0.00.012.346 I decoded   66 tokens in    4.400 seconds, speed:   15.000 t/s

n_draft   = 3
n_predict = 66
n_drafted = 60
n_accept  = 45
accept    = 75.000%
"""


def test_the_counts_are_read():
    report = SpeculativeReport.parse(LOG)
    assert report == SpeculativeReport(150, 66, 4400.0, 60, 45)
    assert report.predicted_per_second == pytest.approx(15)
    assert report.acceptance == 0.75


def test_nothing_drafted_has_no_acceptance():
    log = LOG.replace("= 60", "= 0").replace("= 45", "= 0").replace("75.000", "-nan")
    assert SpeculativeReport.parse(log).acceptance is None


@pytest.mark.parametrize("word", ["encoded", "decoded", "n_drafted", "n_accept", "4.400"])
def test_output_of_another_form_is_one_clear_error(word):
    with pytest.raises(NativeLibraryError, match=r"^.*printed no counts.*build_stock\.py --peer.*$"):
        SpeculativeReport.parse(LOG.replace(word, "0.000"))


def test_a_missing_program_is_named(tmp_path):
    with pytest.raises(NativeLibraryError, match=rf"{PEER}.*build_stock\.py --peer"):
        StockSpeculative(tmp_path / "t.gguf", tmp_path / "d.gguf", tmp_path, n_ctx=256, n_threads=None)

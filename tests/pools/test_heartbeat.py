from __future__ import annotations

from workers.supervision.heartbeat import note, sent_by


def test_a_note_outside_a_supervised_process_does_nothing():
    heard: list[str] = []
    note("before")
    with sent_by(heard.append):
        note("during")
        for _ in range(1000):
            note("timing")
    note("after")
    assert heard[:2] == ["during", "timing"]
    assert "after" not in heard
    assert len(heard) < 500  # repetitions are thinned out

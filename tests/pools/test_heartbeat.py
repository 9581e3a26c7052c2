from __future__ import annotations

from workers.supervision.heartbeat import heartbeat, sent_by


def test_a_note_outside_a_supervised_process_does_nothing():
    heard: list[str] = []
    heartbeat("before")
    with sent_by(heard.append):
        heartbeat("during")
        for _ in range(1000):
            heartbeat("timing")
    heartbeat("after")
    assert heard[:2] == ["during", "timing"]
    assert "after" not in heard
    assert len(heard) < 500  # repetitions are thinned out

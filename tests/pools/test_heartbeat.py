from __future__ import annotations

from workers.supervision.heartbeat import heartbeat, sent_by


def test_a_heartbeat_outside_a_supervised_process_does_nothing():
    sent: list[str] = []
    heartbeat("before")
    with sent_by(sent.append):
        heartbeat("during")
        for _ in range(1000):
            heartbeat("timing")
    heartbeat("after")
    assert sent[:2] == ["during", "timing"]
    assert "after" not in sent
    assert len(sent) < 500  # repetitions within 20 ms are dropped

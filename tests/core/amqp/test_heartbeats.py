"""Heartbeats: said in time, missed in time, never asked of a clock."""

from lbg_core.amqp import BasicProperties, Connection, Role
from lbg_core.amqp.connection import Heartbeats
from lbg_core.amqp.frames import HEARTBEAT_FRAME
from testing.amqp.wire import connected_pair


def pulses(end: Connection, start: float, seconds: float):
    """Call `pulse` whenever it asks to be called, for so long."""
    now, seen = start, []
    while now <= start + seconds:
        pulse = end.pulse(now)
        seen.append((now, pulse, end.take_output()))
        if pulse.next_at is None:
            break
        now = pulse.next_at
    return seen


def test_a_silent_end_beats_at_least_once_an_interval():
    client, _ = connected_pair()
    beats = [now for now, _, output in pulses(client, 100.0, 60) if output == HEARTBEAT_FRAME]
    gaps = [later - earlier for earlier, later in zip([100.0, *beats], beats, strict=False)]
    assert len(beats) > 6
    assert max(gaps) <= client.heartbeat_s


def test_an_end_that_talks_does_not_beat():
    client, _ = connected_pair()
    now = 0.0
    for _ in range(100):
        client.publish(1, "e", "k", BasicProperties().encode(), b"x")
        client.take_output()
        pulse = client.pulse(now)
        assert not pulse.beat
        now = pulse.next_at or 0


def test_a_silent_peer_is_missed_after_two_intervals_and_not_before():
    client, _ = connected_pair()
    expired = [now for now, pulse, _ in pulses(client, 50.0, 60) if pulse.expired]
    assert 50 + 2 * client.heartbeat_s <= expired[0] <= 50 + 2.5 * client.heartbeat_s


def test_any_byte_from_the_peer_counts():
    client, _ = connected_pair()
    now = 0.0
    for _ in range(100):
        client.receive_data(HEARTBEAT_FRAME[:4])
        pulse = client.pulse(now)
        assert not pulse.expired
        client.receive_data(HEARTBEAT_FRAME[4:])
        now = pulse.next_at or 0


def test_a_stop_of_our_own_process_is_not_taken_for_the_peers_silence():
    client, _ = connected_pair()
    client.pulse(0.0)
    assert not client.pulse(1000.0).expired  # what came meanwhile has not been read yet
    client.receive_data(HEARTBEAT_FRAME)
    assert not client.pulse(1001.0).expired


def test_no_heartbeat_agreed_means_no_pulse_at_all():
    connection = Connection(Role.CLIENT, heartbeat_s=0)
    pulse = connection.pulse(5.0)
    assert (pulse.beat, pulse.expired, pulse.next_at) == (False, False, None)


def test_heartbeat_frames_make_no_events():
    client, _ = connected_pair()
    assert client.receive_data(HEARTBEAT_FRAME * 3) == []


def test_the_clock_may_start_anywhere():
    beats = Heartbeats(10, -5.0, bytes_in=0, bytes_out=0)
    assert not beats.check(-4.0, bytes_in=0, bytes_out=0).beat
    assert beats.check(1.0, bytes_in=0, bytes_out=0).beat


def test_a_peer_was_heard_of_when_a_check_found_its_bytes():
    heartbeats = Heartbeats(8.0, 100.0, bytes_in=10, bytes_out=0)
    heartbeats.check(101.0, bytes_in=20, bytes_out=0)
    heartbeats.check(102.0, bytes_in=20, bytes_out=0)
    assert heartbeats.last_received_at == 101.0


def test_without_heartbeats_nobody_knows_when_a_peer_was_heard_of():
    heartbeats = Heartbeats(0, 100.0, bytes_in=10, bytes_out=0)
    heartbeats.check(101.0, bytes_in=20, bytes_out=0)
    assert heartbeats.last_received_at is None

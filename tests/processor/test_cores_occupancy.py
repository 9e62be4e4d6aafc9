import numpy as np

from freshet_serving.processor.cores import Occupancy


def test_each_process_reports_its_load_and_sees_all():
    words = np.zeros(3, np.int64)
    ours, theirs = Occupancy(4, words, 0), Occupancy(4, words, 2)
    ours.change(2)
    theirs.change(1)
    assert words.tolist() == [2, 0, 1]
    assert ours.spare == theirs.spare == 1
    ours.change(-1)
    assert theirs.spare == 2


def test_single_process_has_all_cores():
    occupancy = Occupancy(2)
    occupancy.change(1)
    assert occupancy.spare == 1


def test_heartbeat_advances_only_the_counter_of_its_process():
    beats = np.zeros(3, np.int64)
    occupancy = Occupancy(4, np.zeros(3, np.int64), 1, beats)
    for _ in range(2):
        occupancy.beat()
    assert beats.tolist() == [0, 2, 0]
    Occupancy(1).beat()

from pathlib import Path

import numpy as np

from dragoman.report.evidence.monitor_logs import read_machines
from report.run_folders import START, RunFolder


def _run(path: Path, hosts: tuple[str, ...] = ("alpha", "beta")) -> RunFolder:
    run = RunFolder(path, hosts=hosts)
    run.begin()
    return run


def test_counters_survive_a_reboot_and_say_so(tmp_path: Path) -> None:
    run = _run(tmp_path)
    for second, sent in enumerate((100, 150, 20, 50)):
        run.sample("alpha", START + second, sent)
    missing: list[str] = []
    machine = read_machines(run.write() / "monitor", ["alpha"], {}, missing)[0]
    assert machine.sent_bytes.tolist() == [0, 50, 70, 100]
    assert any("byte counter of eth0 was reset" in notice for notice in missing)


def test_the_interface_of_the_link_or_else_the_busiest(tmp_path: Path) -> None:
    run = _run(tmp_path)
    for second in range(3):
        run.sample("alpha", START + second, 10 * second)
        run.monitor["alpha"][-1]["interfaces"]["wlan0"] = {
            "received_bytes": 0,
            "sent_bytes": 99 * second,
            "speed_mbit": 54,
        }
        run.monitor["alpha"][-1]["interfaces"]["lo"]["sent_bytes"] = 1_000 * second
    folder = run.write() / "monitor"
    assert read_machines(folder, ["alpha"], {}, [])[0].interface == "wlan0"
    chosen = read_machines(folder, ["alpha"], {"alpha": "eth0"}, [])[0]
    assert chosen.interface == "eth0"
    assert chosen.speed_mbit == 1000


def test_clocks_are_aligned_to_worker_0(tmp_path: Path) -> None:
    run = _run(tmp_path)
    for second in range(4):
        offset = {"clock_offset": 30.0} if second == 1 else {}
        run.sample("beta", START + 30 + second, second, **offset)
    machine = read_machines(run.write() / "monitor", ["beta"], {}, [])[0]
    assert (machine.time - START).tolist() == [0, 1, 2, 3]


def test_a_clock_that_went_back(tmp_path: Path) -> None:
    run = _run(tmp_path)
    for second in range(6):
        run.sample("alpha", START + second - (100 if second > 2 else 0), second)
    missing: list[str] = []
    machine = read_machines(run.write() / "monitor", ["alpha"], {}, missing)[0]
    assert (machine.time - START).tolist() == [0, 1, 2, 3, 4, 5]
    assert any("clock went back by 99 s" in notice for notice in missing)


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    run = _run(tmp_path)
    run.sample("alpha", START, 1)
    folder = run.write() / "monitor"
    (folder / "gamma.jsonl").write_text("nonsense\n")
    missing: list[str] = []
    machines = read_machines(folder, ["alpha", "beta"], {}, missing)
    assert [machine.host for machine in machines] == ["alpha"]
    assert any("monitor/beta.jsonl is missing" in notice for notice in missing)
    assert any("monitor/gamma.jsonl contains no complete line" in notice for notice in missing)


def test_gpus_by_index(tmp_path: Path) -> None:
    run = _run(tmp_path)
    for second in range(3):
        gpus = [
            {"index": index, "name": "A GPU", "utilization": 10 * index + second}
            for index in (0, 1)
        ]
        run.sample("alpha", START + second, second, gpus=gpus)
    machine = read_machines(run.write() / "monitor", ["alpha"], {}, [])[0]
    assert [gpu.index for gpu in machine.gpus] == [0, 1]
    np.testing.assert_array_equal(machine.gpus[1].utilization, [10, 11, 12])

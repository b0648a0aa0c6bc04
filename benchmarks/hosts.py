"""Runs over several hosts: their costs, how collecting scales with hosts, and the time until a lost host plays again.

    python benchmarks/hosts.py                            everything, on an idle machine
    python benchmarks/hosts.py --quick                    few hosts, one round
    python benchmarks/hosts.py --only costs --output costs.json
    python benchmarks/hosts.py --only scaling --hosts 1 2 4 --repeats 3 --figure hosts.png
    python benchmarks/hosts.py --only return
    python benchmarks/hosts.py --simulated                without root: hosts that share the network of the machine

Three parts, each in a file of its own:

- costs (`hosts_costs.py`): costs of starting, resting, experience and parameters, beside a baseline of the same run.
- scaling (`hosts_scaling.py`): `qmix_3m` at the speed of the game, without training, with 4 workers of 4 environments
  on each host. A step waits for 10 ms on average (`components/envs/game_speed.py`), so that one machine carries many
  hosts. Rounds are interleaved: each has all numbers of hosts, with free links and with links of 50 Mbit/s and 5 ms.
  The law c h^a is fitted to the rates. The part passes with an exponent a of 0.97 or more while the processors are
  used for less than 70 %, and if the limited links cost 3 % at most.
- return (`hosts_return.py`): the time from when a lost host can be reached again until the rate of three hosts is back.

Hosts are network namespaces with ssh servers, which needs root, or simulated hosts. Starting is always measured on
simulated hosts, because ssh is not part of it.

Before each measurement the program checks how much of the processors other programs use. A verdict says NOT IDLE where
that is more than 5 %. The exit code is 1 if a target was missed, whether or not the machine was idle.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from hosts_costs import costs
from hosts_return import returning
from hosts_run import Places, judged, networked, simulated, used_by_others, why_no_networks
from hosts_scaling import draw, scaling, scaling_table

PARTS = ["costs", "scaling", "return"]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--hosts", type=int, nargs="+", help="of the scaling law (default: 1 2 4 8; quick 1 2 3)")
    parser.add_argument("--repeats", type=int, help="rounds of the scaling law (default: 5; quick 1)")
    parser.add_argument("--seconds", type=float, help="of each rate of scaling and return (default: 20; quick 8)")
    parser.add_argument("--quick", action="store_true", help="few hosts and workers, one round")
    parser.add_argument("--simulated", action="store_true", help="simulated hosts in place of network namespaces")
    parser.add_argument("--figure", type=Path, help="write a figure of the scaling law to this file")
    parser.add_argument("--output", type=Path, help="keep all values in this file, as JSON")
    options = parser.parse_args(arguments)
    options.hosts = options.hosts or ([1, 2, 3] if options.quick else [1, 2, 4, 8])
    options.repeats = options.repeats or (1 if options.quick else 5)
    options.seconds = options.seconds or (8.0 if options.quick else 20.0)
    if not options.simulated and (why := why_no_networks()):
        parser.error(f"{why}; or use --simulated")
    places: Places = simulated if options.simulated else networked
    begun = time.monotonic()
    others = used_by_others()
    values: dict[str, Any] = {"processors": psutil.cpu_count(), "load before": os.getloadavg(), "others": others}
    load = os.getloadavg()[0]
    print(f"{psutil.cpu_count()} processors, others use {others:.0%}, load average {load:.1f} before", flush=True)
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        if "costs" in options.only:
            rows = costs(options, places, Path(scratch))
            values["costs"] = [asdict(row) for row in rows]
            missed += [row.what for row in rows if not row.holds]
        if "scaling" in options.only:
            samples = scaling(options, places, Path(scratch))
            values["scaling"] = [asdict(sample) for sample in samples]
            lines = scaling_table(samples)
            print("\n".join(lines), flush=True)
            missed += [line.partition(" (")[0] for line in lines if "missed" in line]
            if options.figure:
                draw(samples, options.figure)
        if "return" in options.only:
            others = used_by_others()
            found = returning(options, places, Path(scratch))
            values["return"] = {**asdict(found), "others": others}
            print(f"\n{found}: {judged(not found.missed, others)}", flush=True)
            missed += ["the return of a host"] if found.missed else []
    minutes = (time.monotonic() - begun) / 60
    print(f"\n{minutes:.1f} minutes, load average {os.getloadavg()[0]:.1f} after", flush=True)
    if options.output:
        options.output.write_text(json.dumps(values, indent=1) + "\n")
    if missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()

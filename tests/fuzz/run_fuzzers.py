#!/usr/bin/env python3
"""Runs every libFuzzer program of a build folder for some seconds, starting from its saved inputs.

The saved inputs are not changed: new ones go to a folder of their own, and what makes a target fail is kept and named.
"""
import argparse
import concurrent.futures
import pathlib
import subprocess
import sys
import tempfile


def run_one(program, corpus, seconds, finds):
    with tempfile.TemporaryDirectory() as work:
        command = [str(program), f"-max_total_time={seconds}", "-rss_limit_mb=2048", "-timeout=20", "-max_len=65536",
                   "-print_final_stats=1", f"-artifact_prefix={finds}/{program.name}-", work, str(corpus)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    executed = [line.split(":")[1].strip() for line in done.stdout.splitlines() if "number_of_executed_units" in line]
    return program.name, done.returncode, executed[0] if executed else "?", done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="folder with *_fuzz programs")
    parser.add_argument("--seconds", type=int, default=20, help="time per target")
    parser.add_argument("--jobs", type=int, default=2, help="targets at once")
    parser.add_argument("--only", help="one concept")
    args = parser.parse_args()
    corpus = pathlib.Path(__file__).resolve().parent / "corpus"
    finds = args.folder / "finds"
    finds.mkdir(exist_ok=True)
    programs = [p for p in sorted(args.folder.glob("*_fuzz")) if not args.only or p.name == args.only + "_fuzz"]
    if not programs:
        print("no fuzz targets found")
        return 1
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = [pool.submit(run_one, p, corpus / p.name.removesuffix("_fuzz").removeprefix("c99_"), args.seconds, finds) for p in programs]
        for run in runs:
            name, code, executed, output = run.result()
            print(f"{name:32} {'ok' if code == 0 else 'FAILED'}  {executed} inputs", flush=True)
            if code != 0:
                failed += 1
                print(output[-4000:])
    print(f"{len(programs)} fuzz targets, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Builds what is written for Armv8 with a cross compiler and runs it under qemu-user: `armv8.py SOURCE_FOLDER COMPILER
QEMU`. Digests of the SHA-256 kernels are held against hashlib; the byte blocks of base, and PackBits over them, against
their form for any machine. It says that they are right, not how fast they are, and needs no OpenSSL of that machine:
with one, tests/cross/run.sh runs there what tests/crypto has for kernels.

Exit 77, which ctest shows as skipped: the cross compiler or the emulator is missing.
"""
import hashlib
import pathlib
import subprocess
import sys
import tempfile

MOST_BYTES = 5000


def all_bytes():
    out, x = bytearray(), 1
    for _ in range(MOST_BYTES + 64):
        x = (x * 1664525 + 1013904223) % 2**32
        out.append(x >> 24)
    return bytes(out)


def expected_lines():
    data = all_bytes()

    def line(name, message):
        return f"{name} {hashlib.sha256(message).hexdigest()}"

    for size in range(301):
        for offset in (0, 1, 7, 16):
            yield line(f"length {offset} {size}", data[offset:offset + size])
    for count in range(2, 8):
        for i in range(count):
            size = (i * 977 + count * 131) % (MOST_BYTES - 300)
            yield line(f"lane {count} {i}", data[i * 3:i * 3 + size] + data[:100])
    for behind in (0, 13, 63):
        yield line(f"same {behind} a", data[:16] + data[:3000])
        yield line(f"same {behind} b", data[:16 + behind] + data[:3000])


def build(source, compiler, folder):
    """OpenSSL's headers are those of this machine: of them only types and declarations are used."""
    headers = folder / "headers"
    headers.mkdir()
    (headers / "openssl").symlink_to("/usr/include/openssl")
    include = [f"-I{source / 'include'}", f"-I{source / 'src'}", "-isystem", str(headers)]
    for multiarch in sorted(pathlib.Path("/usr/include").glob("*-linux-gnu")):
        if (multiarch / "openssl").is_dir():
            side = folder / "configuration"
            side.mkdir(exist_ok=True)
            if not (side / "openssl").exists():
                (side / "openssl").symlink_to(multiarch / "openssl")
            include += ["-isystem", str(side)]
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror", *include]
    objects = []
    for name, own in (("src/crypto/sha256_armv8.cpp", ["-O3", "-march=armv8-a+crypto"]),
                      ("src/crypto/sha256_plain.cpp", ["-O3"]), ("src/crypto/sha256_sets.cpp", ["-O1"]),
                      ("tests/kernels/armv8_lanes.cpp", ["-O1"])):
        objects.append(str(folder / (pathlib.Path(name).stem + ".o")))
        subprocess.run([compiler, *flags, *own, "-c", str(source / name), "-o", objects[-1]], check=True)
    program = folder / "armv8_lanes"
    subprocess.run([compiler, "-static", *objects, "-o", str(program)], check=True)
    blocks = folder / "armv8_blocks"
    subprocess.run([compiler, *flags, "-O2", "-static", str(source / "tests/kernels/armv8_blocks.cpp"), "-o",
                    str(blocks)], check=True)
    return program, blocks


def main():
    source, compiler, qemu = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if "NOTFOUND" in compiler + qemu:
        print("not run: needs g++-aarch64-linux-gnu and qemu-user")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        program, blocks = build(source, compiler, pathlib.Path(folder))
        print(subprocess.run([qemu, str(blocks)], check=True, capture_output=True, text=True).stdout.strip())
        said = subprocess.run([qemu, str(program)], check=True, capture_output=True, text=True).stdout.splitlines()
    one = list(expected_lines())
    wanted = ["kernels armv8", *one, "kernels plain", *one]
    wrong = [(a, b) for a, b in zip(said, wanted) if a != b]
    for got, want in wrong[:10]:
        print(f"got  {got}\nwant {want}")
    print(f"armv8: {len(said)} lines, {len(wrong)} wrong")
    return 1 if wrong or len(said) != len(wanted) else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
"""third-party.py: what of others is in tarn, tarnd and libtarn, as their licences ask: names, versions, licences, and each text once."""

import json
import os
import subprocess

OURS = {"tarn", "tarn-bench", "tarnd", "tarn-libtarn"}
# Files of a crate that are its licence or say who holds it.
NAMES = ("license", "licence", "copying", "copyright", "notice", "unlicense")


def main():
    cargo = os.environ.get("CARGO", "cargo")
    cargo_metadata = subprocess.run([cargo, "metadata", "--format-version=1", "--locked"], check=True, stdout=subprocess.PIPE)
    metadata = json.loads(cargo_metadata.stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    wanted = [package for package in packages if packages[package]["name"] in OURS]
    linked = set()
    while wanted:
        package = wanted.pop()
        if package not in linked:
            linked.add(package)
            for use in nodes[package]["deps"]:
                if any(kind["kind"] is None for kind in use["dep_kinds"]):
                    wanted.append(use["pkg"])
    texts = {}
    others = [packages[package] for package in linked if packages[package]["source"]]
    for package in sorted(others, key=lambda package: (package["name"], package["version"])):
        name = f"{package['name']} {package['version']}"
        print(f"{name}: {package['license'] or 'see its text below'}")
        folder = os.path.dirname(package["manifest_path"])
        for file in sorted(os.listdir(folder)):
            if file.lower().startswith(NAMES) and os.path.isfile(os.path.join(folder, file)):
                with open(os.path.join(folder, file), encoding="utf-8", errors="replace") as text:
                    texts.setdefault(text.read().strip(), []).append(name)
    for text, names in texts.items():
        print(f"\n{'-' * 72}\n{', '.join(names)}:\n\n{text}")


if __name__ == "__main__":
    main()

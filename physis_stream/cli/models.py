"""`physis-stream models`: the worlds that ship, and any world's profile."""

from __future__ import annotations

import argparse
import dataclasses
import json

from physis_stream.cli import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="list|show", required=True)
    listing = actions.add_parser("list", help="the worlds that ship")
    show = actions.add_parser("show", help="one world's profile")
    show.add_argument("name", help="a world that ships, or a folder in diffusers layout with a profile.json")
    for one in (listing, show):
        one.add_argument("--json", action="store_true", help="for a machine to read")


def run(args: argparse.Namespace) -> int:
    from physis_stream import worlds

    try:
        profiles = [worlds.load_profile(name) for name in (worlds.names() if args.action == "list" else [args.name])]
    except ValueError as wrong:
        raise UsageError(str(wrong)) from wrong
    plain = [json.loads(json.dumps(dataclasses.asdict(profile), default=str)) for profile in profiles]
    if args.json:
        print(json.dumps(plain if args.action == "list" else plain[0], indent=2))
    elif args.action == "list":
        for profile in profiles:
            print(f"{profile.name:<16} {profile.width}x{profile.height} at {profile.fps:g} fps, {profile.discipline}")
    else:
        for key, value in plain[0].items():
            print(f"{key:<20} {value}")
    return 0

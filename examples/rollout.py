"""A world in your own process: drive it in a circle and save what it dreamt.

python examples/rollout.py [out.mp4]
"""

import math
import sys

import av

import physis_stream as ps


def main(path: str = "rollout.mp4", steps: int = 100) -> None:
    with ps.Engine("pusht") as engine, engine.open_session(seed=0) as session, av.open(path, "w") as video:
        low, high = engine.world.action["low"], engine.world.action["high"]
        stream = video.add_stream("h264", rate=round(engine.world.fps))
        stream.width, stream.height, stream.pix_fmt = engine.world.width, engine.world.height, "yuv420p"
        for k in range(steps):
            turn = 2 * math.pi * k / 50
            action = [
                (lo + hi) / 2 + 0.3 * (hi - lo) * part
                for lo, hi, part in zip(low, high, (math.cos(turn), math.sin(turn)), strict=True)
            ]
            chunk = session.step(action)
            for rgb in chunk.frames:
                video.mux(stream.encode(av.VideoFrame.from_ndarray(rgb, "rgb24")))
        video.mux(stream.encode(None))
        print(f"{path}: {steps} steps; last state {chunk.state}")


if __name__ == "__main__":
    main(*sys.argv[1:2])

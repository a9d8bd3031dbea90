/** Types of the browser client of physis_stream. Times are milliseconds of `performance.now()` unless the name says `S`. */

export const PROTOCOL_VERSION: 1;

export type ConnectionState = "idle" | "queued" | "connecting" | "connected" | "reconnecting" | "closed";
export type SessionState = "queued" | "starting" | "ready" | "streaming" | "paused" | "reconnecting" | "failed" | "ended";
export type Mode = "realtime" | "lockstep";

export interface ActionInfo {
  dim: number;
  low: number[];
  high: number[];
  names: string[];
  initial: number[];
  combine: "latest" | "hold" | "sum";
}

export interface WorldInfo {
  name: string;
  title: string;
  description: string;
  family: string;
  height: number;
  width: number;
  fps: number;
  chunk_frames: number;
  action: ActionInfo;
  discipline: string;
  num_steps: number;
  state_names: string[];
  state_units: string[];
  accepts_prompt: boolean;
  accepts_image: boolean;
}

/** One for each chunk, as the server sends it. */
export interface Telemetry {
  frame_id: number;
  rtp_ts: number;
  epoch: number;
  chunk: number;
  applied: number[];
  action: number[];
  state: Record<string, number>;
  reward: number | null;
  t_render: number;
  timing_ms: Record<string, number>;
}

export interface EngineStats {
  sessions: number;
  streaming: number;
  queued: number;
  max_sessions: number;
  tick_ms_p50: number;
  tick_ms_p95: number;
  batch_rows_mean: number;
  chunk_interval_ms_p50: number;
  chunk_interval_ms_p95: number;
  peers?: number;
  [name: string]: unknown;
}

/** `ms` from sending action `seq` to the first displayed frame whose chunk consumed it. */
export interface Photon {
  seq: number;
  ms: number;
  sentMs: number;
  shownMs: number;
  chunk: number;
}

/** One displayed frame. `telemetry` is its chunk's, if it had arrived; `photons` are those that this frame settled. */
export interface Frame {
  shownMs: number;
  rtp: number | null;
  mediaTimeS: number;
  receivedMs: number | null;
  width: number;
  height: number;
  telemetry: Telemetry | null;
  photons: Photon[];
}

export interface SessionEventMap {
  frame: CustomEvent<Frame>;
  photon: CustomEvent<Photon>;
  telemetry: CustomEvent<Telemetry>;
  sent: CustomEvent<{ seq: number; action: number[]; sentMs: number }>;
  status: CustomEvent<{ state: SessionState; epoch: number }>;
  connection: CustomEvent<{ connection: ConnectionState; reason?: string; graceMs?: number }>;
  queue: CustomEvent<{ position: number }>;
  error: CustomEvent<{ error: PhysisError }>;
  ended: CustomEvent<{ reason: string; error: PhysisError | null }>;
  recovered: CustomEvent<Record<string, unknown>>;
  stats: CustomEvent<EngineStats>;
  forked: CustomEvent<{ session: PhysisSession }>;
}

export interface OpenOptions {
  model: string;
  seed?: number;
  mode?: Mode;
  /** Accept a place in the queue; true if left out. */
  wait?: boolean;
  signal?: AbortSignal;
}

export class PhysisClient {
  constructor(baseUrl?: string | URL, options?: { token?: string | null; timeoutMs?: number });
  readonly baseUrl: string;
  set token(token: string | null);
  readonly sessions: PhysisSession[];
  models(): Promise<WorldInfo[]>;
  stats(): Promise<EngineStats>;
  openSession(options: OpenOptions): Promise<PhysisSession>;
  abandon(): void;
}

export class PhysisSession extends EventTarget {
  private constructor();
  readonly id: string;
  readonly token: string | null;
  readonly model: string;
  readonly mode: Mode;
  readonly world: WorldInfo;
  readonly state: SessionState;
  readonly connection: ConnectionState;
  readonly epoch: number;
  readonly queuePosition: number;
  readonly endedReason: string | null;
  readonly lastTelemetry: Telemetry | null;
  readonly peerConnection: RTCPeerConnection | null;
  attach(video: HTMLVideoElement): Promise<void>;
  act(action: ArrayLike<number>): void;
  setPrompt(text: string): Promise<unknown>;
  reset(options?: { seed?: number }): Promise<void>;
  pause(): Promise<void>;
  resume(): Promise<void>;
  fork(): Promise<PhysisSession>;
  fork(count: number): Promise<PhysisSession[]>;
  snapshot(): Promise<string>;
  restore(snapshot: string): Promise<void>;
  stats(): Promise<EngineStats>;
  close(): Promise<void>;
  abandon(): void;
  addEventListener<K extends keyof SessionEventMap>(
    type: K,
    listener: (event: SessionEventMap[K]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject, options?: boolean | AddEventListenerOptions): void;
}

/** Base of all refusals; `code` is the wire's stable name. */
export class PhysisError extends Error {
  readonly code: string;
  readonly recoverable: boolean;
  readonly retryAfterS: number | null;
  readonly requestId: string | null;
  readonly reason: string | null;
  readonly status: number;
}
export class Unauthorized extends PhysisError {}
export class InvalidAction extends PhysisError {}
export class InvalidState extends PhysisError {}
export class NotFound extends PhysisError {}
export class Capacity extends PhysisError {}
export class Timeout extends PhysisError {}
export class Transport extends PhysisError {}
export class SessionEnded extends PhysisError {}
export class TooLarge extends PhysisError {}
export class VersionMismatch extends PhysisError {}

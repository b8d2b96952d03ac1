// Plays PCM as it arrives: every piece becomes an AudioBuffer that starts where the last one ends. Scheduled buffers
// rather than an AudioWorklet, because worklets do not exist on plain http, where a server at home is reached.

/** A buffer's head start, in seconds, when nothing is playing: shorter ones are late on slow machines. */
const LEAD_SECONDS = 0.04;

export class Player {
  #context = null;
  #level = null;
  #samples = null;
  #sources = new Set();
  #nextTime = 0;
  #scheduledSeconds = 0;
  #position = 0;
  #complete = true;
  underruns = 0;

  constructor(onEnd) {
    this.onEnd = onEnd;
  }

  /** Browsers let sound begin in a user's gesture only; the audio itself comes later. */
  unlock() {
    this.#useRate(this.#context?.sampleRate ?? 48000);
    this.#context.resume();
  }

  /** Forget what was playing and get ready for audio of that rate. */
  begin(sampleRate) {
    this.stop();
    this.#useRate(sampleRate);
    this.#nextTime = this.#scheduledSeconds = this.#position = this.underruns = 0;
    this.#complete = false;
  }

  /** The next piece: interleaved 16-bit samples of `channels` channels. */
  push(pcm, channels) {
    const frames = pcm.length / channels;
    if (frames === 0) return;
    const buffer = this.#context.createBuffer(channels, frames, this.#context.sampleRate);
    for (let channel = 0; channel < channels; channel++) {
      const plane = buffer.getChannelData(channel);
      for (let i = 0, j = channel; i < frames; i++, j += channels) plane[i] = pcm[j] / 32768;
    }
    const now = this.#context.currentTime;
    if (this.#nextTime < now) {
      if (this.#scheduledSeconds > 0) this.underruns++;
      this.#nextTime = now + LEAD_SECONDS;
    }
    const source = new AudioBufferSourceNode(this.#context, { buffer });
    source.connect(this.#level);
    source.onended = () => this.#ended(source);
    source.start(this.#nextTime);
    this.#sources.add(source);
    this.#nextTime += buffer.duration;
    this.#scheduledSeconds += buffer.duration;
  }

  /** Nothing more comes: `onEnd` is called when the last sample was heard. */
  finish() {
    if (this.#complete) return;
    this.#complete = true;
    if (this.#sources.size === 0) this.onEnd();
  }

  /** Fall silent at once. */
  stop() {
    this.#complete = true;
    for (const source of this.#sources) {
      source.onended = null;
      source.stop();
    }
    this.#sources.clear();
  }

  get playing() {
    return this.#sources.size > 0;
  }

  /** Seconds of audio that are here and were not heard yet. */
  get bufferSeconds() {
    return this.playing ? Math.max(0, this.#nextTime - this.#context.currentTime) : 0;
  }

  /** Seconds of the take that were heard. Never goes back, though the lead after an underrun would make it. */
  get position() {
    if (this.playing) this.#position = Math.max(this.#position, this.#scheduledSeconds - this.bufferSeconds);
    return this.#position;
  }

  /** Loudness now, 0 to 1 over the upper 60 dB. */
  get level() {
    if (!this.playing) return 0;
    this.#level.getFloatTimeDomainData(this.#samples);
    const power = this.#samples.reduce((sum, x) => sum + x * x, 0) / this.#samples.length;
    return Math.min(1, Math.max(0, 1 + Math.log10(power + 1e-12) / 6));
  }

  #useRate(sampleRate) {
    if (this.#context?.sampleRate === sampleRate) return;
    this.#context?.close();
    // At the stream's own rate, or every piece would be resampled by itself, with a click at each seam.
    this.#context = new AudioContext({ sampleRate });
    this.#level = new AnalyserNode(this.#context, { fftSize: 1024 });
    this.#samples = new Float32Array(this.#level.fftSize);
    this.#level.connect(this.#context.destination);
  }

  #ended(source) {
    this.#sources.delete(source);
    if (this.#sources.size > 0) return;
    this.#position = this.#scheduledSeconds;
    if (this.#complete) this.onEnd();
  }
}

// One thing spoken: its audio as it comes in, its outline, its WAV file.

/** Outline resolution: a bar on the screen is never wider than some of these. */
const OUTLINE_SECONDS = 0.02;

export class Take {
  pieces = [];
  frames = 0;
  outline = [];
  seed = "";
  firstMs = null;
  rtf = null;
  #outlineFrames = 0;
  #peak = 0;
  #rest = new Uint8Array(0);

  constructor(fields) {
    this.fields = fields;
  }

  /** What the response's headers say of the audio. */
  describe(headers) {
    this.sampleRate = Number(headers.get("X-Sample-Rate"));
    this.channels = Number(headers.get("X-Channels"));
    this.seed = headers.get("X-Seed") ?? "";
  }

  /** Bytes from the network, cut anywhere: gives back the whole frames among them, interleaved. */
  append(bytes) {
    const joined = new Uint8Array(this.#rest.length + bytes.length);
    joined.set(this.#rest);
    joined.set(bytes, this.#rest.length);
    const whole = joined.length - (joined.length % (2 * this.channels));
    this.#rest = joined.slice(whole);
    const pcm = new Int16Array(joined.buffer, 0, whole / 2);
    this.pieces.push(pcm);
    this.frames += pcm.length / this.channels;
    this.#draw(pcm);
    return pcm;
  }

  get seconds() {
    return this.frames ? this.frames / this.sampleRate : 0;
  }

  get bytes() {
    return 2 * this.channels * this.frames;
  }

  /** A WAV file of what has been heard: 16-bit PCM behind a header of 44 bytes. */
  wav() {
    const header = new DataView(new ArrayBuffer(44));
    const text = (at, letters) => [...letters].forEach((letter, i) => header.setUint8(at + i, letter.charCodeAt(0)));
    text(0, "RIFF");
    header.setUint32(4, 36 + this.bytes, true);
    text(8, "WAVEfmt ");
    header.setUint32(16, 16, true);
    header.setUint16(20, 1, true);
    header.setUint16(22, this.channels, true);
    header.setUint32(24, this.sampleRate, true);
    header.setUint32(28, this.sampleRate * this.channels * 2, true);
    header.setUint16(32, this.channels * 2, true);
    header.setUint16(34, 16, true);
    text(36, "data");
    header.setUint32(40, this.bytes, true);
    return new Blob([header, ...this.pieces], { type: "audio/wav" });
  }

  #draw(pcm) {
    const framesPerPoint = Math.round(this.sampleRate * OUTLINE_SECONDS);
    for (let i = 0; i < pcm.length; i += this.channels) {
      this.#peak = Math.max(this.#peak, Math.abs(pcm[i]));
      if (++this.#outlineFrames === framesPerPoint) {
        this.outline.push(this.#peak / 32768);
        this.#outlineFrames = this.#peak = 0;
      }
    }
  }
}

/** Draw the outline as bars: what was heard, what is still to be heard, and the rest of the room. */
export function drawOutline(canvas, outline, heard) {
  const scale = window.devicePixelRatio;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  [canvas.width, canvas.height] = [width * scale, height * scale];
  const colours = getComputedStyle(canvas);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const pitch = 5;
  const bars = Math.floor(width / pitch);
  // A short take grows from the left; a long one is squeezed into the width.
  const pointsPerBar = Math.max(2, outline.length / bars);
  const head = Math.floor((heard * outline.length) / pointsPerBar);
  for (let bar = 0; bar < bars; bar++) {
    const points = outline.slice(Math.floor(bar * pointsPerBar), Math.floor((bar + 1) * pointsPerBar));
    // The square root shows quiet speech; silence is a dot.
    const size = Math.max(3, Math.sqrt(Math.max(0, ...points)) * (height - 4));
    const colour = points.length === 0 ? "--line" : bar < head ? "--one" : bar === head ? "--two" : "--wave";
    pen.fillStyle = colours.getPropertyValue(colour);
    pen.beginPath();
    pen.roundRect(bar * pitch, (height - size) / 2, 3, size, 1.5);
    pen.fill();
  }
}

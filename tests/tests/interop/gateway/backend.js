// A service that notes every request in a file before it answers.
const [port, file, speech, certificate, key] = process.argv.slice(2);
const crypto = require('node:crypto');
const fs = require('node:fs');
const http = require('node:http');
const http2 = require('node:http2');
const https = require('node:https');

const log = fs.openSync(file, 'a');
let delay = 0;
let events = null;
let timeouts = 0;
let result = '';

// What a browser does with the gateway.
const page = `<!doctype html><script>
const event = () => new Promise((done, failed) => {
  const source = new EventSource('/events');
  source.onmessage = (message) => { source.close(); done(message.data); };
  source.onerror = () => failed('no event');
});
const echo = () => new Promise((done, failed) => {
  const socket = new WebSocket(location.origin.replace('http', 'ws') + '/echo');
  socket.onopen = () => socket.send('ping');
  socket.onmessage = (message) => { socket.close(); done(message.data); };
  socket.onerror = () => failed('no WebSocket');
});
const upload = (path, length) => fetch(path, { method: 'POST', body: new Uint8Array(length) });
(async () => {
  try {
    const all = await Promise.all([...Array(20).keys()].map((id) => fetch('/?id=' + id)));
    const whole = await upload('/?id=u', 1 << 20);
    await upload('/denied', 1);
    const denied = await upload('/denied', 4 << 20);
    const entries = performance.getEntriesByType('resource').map((it) => it.nextHopProtocol);
    return [all.filter((it) => it.ok).length + ' fetches',
      'upload ' + whole.status + ' ' + await whole.text(), 'denied ' + denied.status,
      [...new Set(entries)].join('+'), 'event ' + await event(), 'echo ' + await echo()].join(', ');
  } catch (error) {
    return String(error);
  }
})().then((text) => fetch('/result', { method: 'POST', body: text }));
</script>`;

const answer = (request, response) => {
  const url = new URL(request.url, 'http://a');
  if (url.pathname === '/delay') {
    delay = Number(url.searchParams.get('ms'));
    return response.end();
  }
  if (url.pathname === '/timeouts') {
    const text = `${timeouts}`;
    response.setHeader('content-length', text.length);
    return response.end(text);
  }
  if (url.pathname === '/page') {
    response.setHeader('content-type', 'text/html');
    return response.end(page);
  }
  if (url.pathname === '/result') {
    response.setHeader('content-length', result.length);
    response.end(result);
    return request.on('data', (piece) => (result += piece));
  }
  if (url.pathname === '/events') {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write('data: first\n\n');
    events = response;
    return;
  }
  if (url.pathname === '/second') {
    events.end('data: second\n\n');
    return response.end();
  }
  if (url.pathname === '/trailers') {
    let length = 0;
    request.on('data', (piece) => (length += piece.length));
    request.on('end', () => {
      response.writeHead(200, { trailer: 'x-sum' });
      response.write(`${length} bytes, then ${request.trailers['x-end']}`);
      response.addTrailers({ 'x-sum': '7' });
      response.end();
    });
    return;
  }
  if (url.pathname === '/download') {
    let left = Number(url.searchParams.get('bytes'));
    response.setHeader('content-length', left);
    const piece = Buffer.alloc(64 << 10);
    const more = () => {
      while (left > 0) {
        const next = left < piece.length ? piece.subarray(0, left) : piece;
        left -= next.length;
        if (!response.write(next)) return response.once('drain', more);
      }
      response.end();
    };
    return more();
  }
  fs.writeSync(log, `${request.method} ${url.searchParams.get('id')}\n`);
  let length = 0;
  request.on('data', (piece) => (length += piece.length));
  request.on('end', () => {
    const text = `${length}`;
    response.setHeader('content-length', text.length);
    if (delay > 0) setTimeout(() => response.end(text), delay);
    else response.end(text);
  });
};

const read = (name) => fs.readFileSync(name);
const server = speech === 'h2c' ? http2.createServer(answer)
  : speech === 'https' ? https.createServer({ cert: read(certificate), key: read(key) }, answer)
    : http.createServer(answer);

// The default closes a connection after five idle seconds.
server.on('connection', (socket) => socket.on('timeout', () => (timeouts += 1)));

server.on('upgrade', (request, socket) => {
  const guid = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
  const hash = crypto.createHash('sha1');
  const accept = hash.update(request.headers['sec-websocket-key'] + guid).digest('base64');
  socket.write('HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n' +
    `upgrade: websocket\r\nsec-websocket-accept: ${accept}\r\n\r\n`);
  // Text of at most 125 bytes, masked; it goes back without its mask.
  let bytes = Buffer.alloc(0);
  socket.on('data', (piece) => {
    bytes = Buffer.concat([bytes, piece]);
    for (;;) {
      const length = bytes.length < 2 ? 0 : bytes[1] & 127;
      if (bytes.length < 6 + length || bytes.length < 6) return;
      const mask = bytes.subarray(2, 6);
      const text = Buffer.from(bytes.subarray(6, 6 + length).map((byte, at) => byte ^ mask[at % 4]));
      socket.write(Buffer.concat([Buffer.from([bytes[0], length]), text]));
      bytes = bytes.subarray(6 + length);
    }
  });
  socket.on('error', () => {});
});

server.listen(Number(port), '127.0.0.1');

//! The terminal: another screen, without the cursor and without echo, and back again at the end.

use std::io::{self, Read as _, Write as _};
use std::thread;
use std::time::Duration;

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::frame::Size;
use crate::stdout;

/// The usual size, for a terminal that does not report its own.
const USUAL: Size = Size { columns: 80, rows: 24 };
/// The other screen (`smcup`) without the cursor (`civis`).
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
/// The cursor and the screen from before.
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";
/// Control-C and control-D, as a terminal sends them without signals.
const ENDS: [u8; 3] = [b'q', 3, 4];

/// A terminal in use. It is restored when this is dropped.
pub(super) struct Screen {
    before: Option<Termios>,
    keys: mpsc::Receiver<u8>,
    resized: Signal,
    terminated: Signal,
    interrupted: Signal,
}

/// Why a wait has ended.
pub(super) enum Wake {
    Time,
    /// The terminal has another size.
    Resized,
    /// By a key or a signal.
    End,
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        // Before the terminal is changed, so that no signal leaves it so.
        let resized = signal(SignalKind::window_change())?;
        let terminated = signal(SignalKind::terminate())?;
        let interrupted = signal(SignalKind::interrupt())?;
        let (send, keys) = mpsc::channel(16);
        // Standard input may be no terminal: then there are no keys.
        let before = tcgetattr(io::stdin()).ok();
        if let Some(before) = &before {
            let mut quiet = before.clone();
            quiet.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
            quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
            quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(io::stdin(), OptionalActions::Now, &quiet)?;
            thread::spawn(move || read_keys(&send));
        }
        let screen = Self { before, keys, resized, terminated, interrupted };
        write(ENTER)?;
        Ok(screen)
    }

    pub(super) fn size(&self) -> Size {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                Size { columns: size.ws_col.into(), rows: size.ws_row.into() }
            }
            _ => USUAL,
        }
    }

    /// Waits for a while, or for a key or a signal.
    pub(super) async fn wait(&mut self, time: Duration) -> Wake {
        let deadline = tokio::time::Instant::now() + time;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => return Wake::Time,
                _ = self.resized.recv() => return Wake::Resized,
                _ = self.terminated.recv() => return Wake::End,
                _ = self.interrupted.recv() => return Wake::End,
                Some(key) = self.keys.recv() => {
                    if ENDS.contains(&key) {
                        return Wake::End;
                    }
                }
            }
        }
    }

    /// Replaces what is shown.
    pub(super) fn show(&mut self, lines: &[String]) -> io::Result<()> {
        let mut text = String::from("\x1b[H");
        // Raw lines, each cleared to its end; below the last one nothing is left.
        text += &lines.iter().map(|line| format!("{line}\x1b[K")).collect::<Vec<_>>().join("\r\n");
        text += "\x1b[J";
        write(text.as_bytes())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = write(LEAVE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = stdout::lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

fn read_keys(send: &mpsc::Sender<u8>) {
    let mut key = [0];
    while let Ok(1) = io::stdin().read(&mut key) {
        if send.blocking_send(key[0]).is_err() {
            return;
        }
    }
}

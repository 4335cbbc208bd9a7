//! What a node's directory has heard from group 0 of its starts (file `heard`), so that
//! an old copy of it is known for one however often it is started (R1).
//!
//! ```text
//! tidegate-heard 1
//! token HEX       of this start, and of those before it that were not heard of
//! last HEX        the one before, which group 0 recorded; 0 = none
//! recorded N ...  per log: counter of its last open that is known to be recorded
//! whole 0|1       group 0 recorded every log's open under this token
//! ```
//!
//! 1. A token is durable here before anybody is told of it.
//! 2. The next one is drawn by the start after the one whose logs were all recorded: what
//!    group 0 holds is always the present token or the last.
//!
//! A crash leaves the old file or the new one, whole; a temporary one is written over.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use super::{
    data_directory::{random_u64, sync_directory, DirectoryError},
    formats::Unfit,
};
use crate::{log::OtherFormat, state::meta::Lineage};

const FILE: &str = "heard";
const FORMAT: u32 = 1;
const MAGIC: &str = "tidegate-heard";

/// See the module's head.
pub(super) struct Heard {
    directory: PathBuf,
    /// As this start says it.
    said: Text,
    now: Mutex<Text>,
}

/// The file's fields.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Text {
    token: u64,
    last_token: u64,
    recorded: Vec<u64>,
    /// Counters heard of under this token; the file says only whether all were.
    heard: Vec<Option<u64>>,
    whole: bool,
}

impl Heard {
    /// A start of a directory of `shards` logs begins; blocking.
    ///
    /// # Errors
    /// The file cannot be read, understood or written.
    pub(super) fn begin(directory: &Path, shards: u16) -> Result<Self, DirectoryError> {
        let write = |source| DirectoryError::Write {
            path: directory.to_owned(),
            source,
        };
        let text = match read(directory, shards)? {
            Some(text) if !text.whole => text,
            stored => {
                let token = random_u64().map_err(write)?.max(1);
                Text::after(stored, token, shards)
            }
        };
        let said = text.clone();
        let now = Mutex::new(text);
        let directory = directory.to_owned();
        let heard = Heard {
            directory,
            said,
            now,
        };
        heard.store().map_err(|source| DirectoryError::Write {
            path: heard.directory.clone(),
            source,
        })?;
        Ok(heard)
    }

    /// What this start says of a log.
    pub(super) fn of(&self, log: u16) -> Lineage {
        Lineage {
            token: self.said.token,
            last_token: self.said.last_token,
            recorded: self
                .said
                .recorded
                .get(usize::from(log))
                .copied()
                .unwrap_or(0),
        }
    }

    /// Group 0 recorded this start's open number `counter` of a log. True when that is
    /// news that [`Heard::store`] should keep.
    pub(super) fn note(&self, log: u16, counter: u64) -> bool {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(heard) = now.heard.get_mut(usize::from(log)) else {
            return false;
        };
        if heard.is_some_and(|known| known >= counter) {
            return false;
        }
        *heard = Some(counter);
        let all: Option<Vec<u64>> = now.heard.iter().copied().collect();
        let Some(all) = all else {
            return false;
        };
        now.recorded = all;
        now.whole = true;
        true
    }

    /// Makes what is known durable; blocking. Where it fails the token is kept for the
    /// next start, and nothing is at risk but that an old copy is known for one later.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn store(&self) -> io::Result<()> {
        // Held over the write, so that an older text never comes last.
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let temporary = self.directory.join("heard.tmp");
        let mut file = File::create(&temporary)?;
        file.write_all(now.to_string().as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, self.directory.join(FILE))?;
        sync_directory(&self.directory)
    }
}

impl Text {
    /// The text of a start after one whose logs were all recorded, or the first one.
    fn after(stored: Option<Text>, token: u64, shards: u16) -> Self {
        let none = vec![0; usize::from(shards)];
        let (last_token, recorded) = match stored {
            Some(stored) => (stored.token, stored.recorded),
            None => (0, none),
        };
        Text {
            token,
            last_token,
            recorded,
            heard: vec![None; usize::from(shards)],
            whole: false,
        }
    }

    fn parse(text: &str, shards: u16) -> Result<Self, String> {
        let mut lines = text.lines();
        let mut field = |name: &str| {
            let line = lines.next().and_then(|line| line.strip_prefix(name));
            let value = line.and_then(|line| line.strip_prefix(' '));
            value.ok_or_else(|| format!("the line {name:?} is missing"))
        };
        let bad = |name: &str| format!("the line {name:?} does not read");
        let format: u32 = field(MAGIC)?.parse().map_err(|_| bad(MAGIC))?;
        if format != FORMAT {
            return Err(format!("format {format}, and this build reads {FORMAT}"));
        }
        let hex = |name: &str, value: &str| u64::from_str_radix(value, 16).map_err(|_| bad(name));
        let token = hex("token", field("token")?)?;
        let last_token = hex("last", field("last")?)?;
        let recorded: Result<Vec<u64>, _> = field("recorded")?.split(' ').map(str::parse).collect();
        let recorded = recorded.map_err(|_| bad("recorded"))?;
        if recorded.len() != usize::from(shards) || token == 0 {
            return Err("it is not of a directory with so many logs".to_owned());
        }
        let whole = match field("whole")? {
            "0" => false,
            "1" => true,
            _ => return Err(bad("whole")),
        };
        Ok(Text {
            token,
            last_token,
            recorded,
            heard: vec![None; usize::from(shards)],
            whole,
        })
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let recorded: Vec<String> = self.recorded.iter().map(u64::to_string).collect();
        writeln!(f, "{MAGIC} {FORMAT}")?;
        writeln!(f, "token {:016x}", self.token)?;
        writeln!(f, "last {:016x}", self.last_token)?;
        writeln!(f, "recorded {}", recorded.join(" "))?;
        writeln!(f, "whole {}", u8::from(self.whole))
    }
}

fn read(directory: &Path, shards: u16) -> Result<Option<Text>, DirectoryError> {
    let path = || directory.to_owned();
    let text = match fs::read_to_string(directory.join(FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let reason = error.to_string();
            return Err(DirectoryError::Heard {
                path: path(),
                reason,
            });
        }
    };
    let parsed = Text::parse(&text, shards);
    let parsed = parsed.map_err(|reason| DirectoryError::Heard {
        path: path(),
        reason,
    });
    parsed.map(Some)
}

/// Whether a start can go on from the file; it is left alone.
///
/// # Errors
/// It is in another format, or damaged.
pub(super) fn check(directory: &Path, shards: u16) -> Result<(), Unfit> {
    let text = fs::read_to_string(directory.join(FILE)).unwrap_or_default();
    let number = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix(MAGIC));
    let format = number.and_then(|number| number.trim().parse().ok());
    if let Some(format) = format.filter(|format| *format != FORMAT) {
        let other = OtherFormat {
            what: format!("the file `{FILE}`"),
            format,
            reads: FORMAT,
        };
        return Err(Unfit::Format(other.to_string()));
    }
    let damaged = read(directory, shards).err();
    damaged.map_or(Ok(()), |error| Err(Unfit::Damaged(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::meta::{Contradiction, Open};

    fn open(heard: &Heard, counter: u64) -> Open {
        let nonce = random_u64().unwrap();
        let (cookie, lineage) = (1, heard.of(0));
        Open {
            cookie,
            counter,
            nonce,
            lineage,
            level: 1,
        }
    }

    #[test]
    fn a_token_is_kept_until_every_log_is_recorded_and_then_followed_by_another() {
        let directory = tempfile::tempdir().unwrap();
        let begin = || Heard::begin(directory.path(), 2).unwrap();
        let first = begin();
        let token = first.of(0).token;
        assert_eq!((first.of(1).last_token, first.of(1).recorded), (0, 0));
        assert!(!first.note(0, 1), "one log is not all");
        let again = begin();
        assert_eq!(again.of(0).token, token);
        assert!(!again.note(1, 2) && again.note(0, 2) && !again.note(0, 2));
        again.store().unwrap();
        let next = begin();
        assert_ne!(next.of(0).token, token);
        assert_eq!((next.of(0).last_token, next.of(0).recorded), (token, 2));
        // The log latched and was opened again in the same start.
        assert!(!next.note(0, 3) && next.note(1, 3) && next.note(0, 9));
        next.store().unwrap();
        assert_eq!((begin().of(0).recorded, begin().of(1).recorded), (9, 3));
    }

    #[test]
    fn a_file_that_is_damaged_or_of_another_format_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        Heard::begin(directory.path(), 2).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        for (part, wrong) in [
            ("heard 1", "heard 2"),
            ("whole 0", "whole 2"),
            ("recorded 0 0", "recorded 0"),
            ("last 0", "last x"),
            ("token ", "token"),
        ] {
            fs::write(&path, text.replace(part, wrong)).unwrap();
            assert!(Heard::begin(directory.path(), 2).is_err(), "{part}");
        }
        fs::write(&path, text.replace("heard 1", "heard 2")).unwrap();
        let format = check(directory.path(), 2);
        assert!(matches!(format, Err(Unfit::Format(_))), "{format:?}");
        fs::write(&path, "").unwrap();
        let damaged = check(directory.path(), 2);
        assert!(matches!(damaged, Err(Unfit::Damaged(_))), "{damaged:?}");
        fs::remove_file(&path).unwrap();
        assert!(check(directory.path(), 2).is_ok());
    }

    /// Started as often as the one it was copied from, and more often.
    #[test]
    fn an_old_copy_is_known_for_one_however_often_it_is_started() {
        let original = tempfile::tempdir().unwrap();
        let copy = tempfile::tempdir().unwrap();
        let start = |directory: &Path| Heard::begin(directory, 1).unwrap();
        let recorded = |directory: &Path, counter: u64| {
            let heard = start(directory);
            let open = open(&heard, counter);
            assert!(heard.note(0, counter));
            heard.store().unwrap();
            open
        };
        let first = recorded(original.path(), 1);
        fs::copy(original.path().join(FILE), copy.path().join(FILE)).unwrap();
        // One start that group 0 recorded, of which the directory never heard.
        let known = open(&start(original.path()), 2);
        assert_eq!(first.contradicts(known), None);
        for counter in 2..9 {
            let old = open(&start(copy.path()), counter);
            assert!(known.contradicts(old).is_some(), "{counter}");
            // Whoever is behind lets it in, as it would the right one.
            assert_eq!(first.contradicts(old), None);
        }
        let old = open(&start(copy.path()), 3);
        let strayed = Contradiction::Strayed {
            known: 2,
            heard_of: 1,
        };
        assert_eq!(known.contradicts(old), Some(strayed));
        assert_eq!(known.contradicts(open(&start(original.path()), 3)), None);
        let next = recorded(original.path(), 4);
        assert_eq!(known.contradicts(next), None);
        let after = open(&start(original.path()), 5);
        assert_eq!(next.contradicts(after), None);
        // One that knows of a later open than whoever judges is let in.
        assert_eq!(known.contradicts(after), None);
        assert_eq!(first.contradicts(after), None);
    }
}

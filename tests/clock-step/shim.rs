//! Preloaded into a server by `tests/faults/clock.rs`, which compiles it: the wall
//! clock of that process alone is off by as many seconds as a file says. The
//! monotonic clock stays as it is.

use std::ffi::{c_char, c_int, c_long, c_void, CStr};

#[cfg(target_arch = "x86_64")]
const SYS_CLOCK_GETTIME: c_long = 228;
#[cfg(target_arch = "aarch64")]
const SYS_CLOCK_GETTIME: c_long = 113;

const CLOCK_REALTIME: c_int = 0;
const CLOCK_REALTIME_COARSE: c_int = 5;
const OFFSET_FILE: &CStr = c"TIDEGATE_TEST_CLOCK_OFFSET";

extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn getenv(name: *const c_char) -> *const c_char;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn read(file: c_int, into: *mut c_void, bytes: usize) -> isize;
    fn close(file: c_int) -> c_int;
}

#[repr(C)]
pub struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

/// Stands in front of the C library's.
///
/// # Safety
/// As there: `time` is null or may be written to.
#[no_mangle]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int {
    // SAFETY: the caller's promise is what the system call asks for.
    let result = unsafe { syscall(SYS_CLOCK_GETTIME, c_long::from(clock), time) } as c_int;
    let is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if result == 0 && is_wall && !time.is_null() {
        // SAFETY: the system call has just filled it.
        unsafe { (*time).seconds += offset_s().unwrap_or(0) };
    }
    result
}

fn offset_s() -> Option<i64> {
    let mut text = [0_u8; 24];
    // SAFETY: both strings end in zero, the buffer is as long as said, and the
    // descriptor is closed once. Nobody changes the environment meanwhile.
    let bytes = unsafe {
        let path = getenv(OFFSET_FILE.as_ptr());
        if path.is_null() {
            return None;
        }
        let file = open(path, 0);
        if file < 0 {
            return None;
        }
        let bytes = read(file, text.as_mut_ptr().cast(), text.len());
        close(file);
        usize::try_from(bytes).ok()?
    };
    let text = core::str::from_utf8(text.get(..bytes)?).ok()?;
    text.trim().parse().ok()
}

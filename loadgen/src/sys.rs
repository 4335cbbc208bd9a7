//! The system calls that std does not offer, each behind a safe function.
//!
//! Owns: every `unsafe` block of this crate.
//! Never: keeps state.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid, writable timespec for the length of the call.
    // CLOCK_MONOTONIC always exists on Linux, so the result need not be checked.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps until `CLOCK_MONOTONIC` reads `deadline_ns`, through signals.
pub fn sleep_until(deadline_ns: u64) {
    let time = timespec(deadline_ns);
    loop {
        // SAFETY: `time` is valid for reading; a null remainder is allowed with
        // an absolute deadline.
        let result = unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &time,
                std::ptr::null_mut(),
            )
        };
        if result != libc::EINTR {
            return;
        }
    }
}

/// What a descriptor is ready for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ready {
    pub read: bool,
    pub write: bool,
}

/// Waits until `fd` can be read (or, if asked, written), or `timeout_ns` is
/// over. A hang-up or error counts as readable: the read then says what it is.
///
/// # Errors
/// What `ppoll` answers, except an interruption, which counts as "nothing ready".
pub fn wait_fd(fd: BorrowedFd<'_>, want_write: bool, timeout_ns: u64) -> io::Result<Ready> {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN | if want_write { libc::POLLOUT } else { 0 },
        revents: 0,
    };
    let timeout = timespec(timeout_ns);
    // SAFETY: one valid pollfd, a valid timeout, no signal mask; `fd` is open
    // because it is borrowed.
    let result = unsafe { libc::ppoll(&mut poll, 1, &timeout, std::ptr::null()) };
    if result < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted {
            Ok(Ready::default())
        } else {
            Err(error)
        };
    }
    Ok(Ready {
        read: poll.revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0,
        write: poll.revents & libc::POLLOUT != 0,
    })
}

/// Lets timers of this thread fire on time: the default slack is 50 us.
pub fn remove_timer_slack() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches no memory. It
    // cannot fail with a positive value.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0_u64, 0_u64, 0_u64) };
}

/// The cores the calling thread may run on.
///
/// # Errors
/// What `sched_getaffinity` answers.
pub fn affinity() -> io::Result<Vec<usize>> {
    // SAFETY: an all-zero cpu_set_t is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable and its size is passed; 0 means this thread.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: every index is below CPU_SETSIZE, so the bit lies inside the set.
    Ok((0..libc::CPU_SETSIZE as usize)
        .filter(|core| unsafe { libc::CPU_ISSET(*core, &set) })
        .collect())
}

/// Restricts the calling thread, and threads it starts later, to `cores`.
///
/// # Errors
/// A core number that does not exist, or what `sched_setaffinity` answers.
pub fn set_affinity(cores: &[usize]) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for core in cores {
        if *core >= libc::CPU_SETSIZE as usize {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the index was checked to lie inside the set.
        unsafe { libc::CPU_SET(*core, &mut set) };
    }
    // SAFETY: `set` is readable and its size is passed; 0 means this thread.
    if unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A signal the generator may send to the server under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Stop,
    Continue,
}

/// Sends `signal` to process `pid`.
///
/// # Errors
/// No such process, or not permitted.
pub fn send_signal(pid: u32, signal: Signal) -> io::Result<()> {
    let number = match signal {
        Signal::Stop => libc::SIGSTOP,
        Signal::Continue => libc::SIGCONT,
    };
    let pid = i32::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: kill touches no memory of this process. `pid` is not negative,
    // and 0 (this process group) is excluded here.
    if pid == 0 || unsafe { libc::kill(pid, number) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Ticks per second of the CPU times in `/proc`.
pub fn clock_ticks_per_second() -> u64 {
    // SAFETY: sysconf touches no memory of ours.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).unwrap_or(100).max(1)
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write, net::TcpListener, net::TcpStream, os::fd::AsFd};

    #[test]
    fn a_sleep_never_ends_before_its_deadline() {
        let deadline = now_ns() + 3_000_000;
        sleep_until(deadline);
        assert!(now_ns() >= deadline);
        sleep_until(0);
    }

    #[test]
    fn waiting_reports_data_and_otherwise_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        assert!(!wait_fd(far.as_fd(), false, 1_000).unwrap().read);
        assert!(wait_fd(far.as_fd(), true, 0).unwrap().write);
        near.write_all(b"x").unwrap();
        assert!(wait_fd(far.as_fd(), false, 5_000_000_000).unwrap().read);
    }

    #[test]
    fn this_thread_can_be_pinned_to_one_of_its_cores() {
        let before = affinity().unwrap();
        set_affinity(&before[..1]).unwrap();
        assert_eq!(affinity().unwrap(), before[..1]);
        set_affinity(&before).unwrap();
        assert!(set_affinity(&[usize::MAX]).is_err());
    }

    #[test]
    fn signalling_nobody_is_refused() {
        assert!(send_signal(0, Signal::Continue).is_err());
        assert!(send_signal(u32::MAX, Signal::Continue).is_err());
    }
}

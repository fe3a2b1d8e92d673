//! The functions of `tarn.h`.

use crate::abi::{
    bytes, tarn_outcome, tarn_place, tarn_space, tarn_stats, tarn_status, tarn_task, text,
};
use crate::guard::{guard, invalid};
use std::ffi::{OsStr, c_char, c_int};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;
use tarn_client::{Client, WaitCondition};
use tarn_proto::local::{
    Access, CancelResult, Code, JobChange, JobId, Limit, PauseResult, RequestError, SpaceChange,
    SpaceSpec, TaskSpec,
};

/// A connection, as C has it.
#[allow(non_camel_case_types)]
pub struct tarn_connection(Client);

/// # Safety
/// `connection` is NULL or was given by `tarn_connect` and is not closed.
unsafe fn client<'a>(connection: *const tarn_connection) -> Result<&'a Client, RequestError> {
    // SAFETY: as the caller says.
    let connection = unsafe { connection.as_ref() };
    let connection = connection.ok_or_else(|| invalid("the connection is NULL"))?;
    Ok(&connection.0)
}

/// # Safety
/// `items` has `count` items.
unsafe fn list<'a, T>(items: *const T, count: usize, what: &str) -> Result<&'a [T], RequestError> {
    match (count, items.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(invalid(format!("{what} is NULL"))),
        // SAFETY: not NULL, and the caller says that there are so many.
        _ => Ok(unsafe { std::slice::from_raw_parts(items, count) }),
    }
}

/// Writes results for C.
///
/// # Safety
/// `to` is NULL or has space for all.
unsafe fn write<T>(to: *mut T, items: impl Iterator<Item = T>) {
    if !to.is_null() {
        for (at, item) in items.enumerate() {
            // SAFETY: the caller says that there is space.
            unsafe { to.add(at).write(item) };
        }
    }
}

fn not_null<T>(pointer: *mut T, what: &str) -> Result<(), RequestError> {
    if pointer.is_null() {
        return Err(invalid(format!("{what} is NULL")));
    }
    Ok(())
}

/// # Safety
/// As for `tarn_connect` in the header.
unsafe fn open(
    socket: *const c_char,
    job: Option<JobId>,
    connection: *mut *mut tarn_connection,
) -> c_int {
    guard(|| {
        not_null(connection, "where the connection goes")?;
        // SAFETY: not NULL; C gives a valid place.
        unsafe { connection.write(std::ptr::null_mut()) };
        let path = if socket.is_null() {
            std::env::var_os(tarn_client::SOCKET).ok_or_else(|| {
                let text = "TARN_SOCKET is not set: no tarnd serves this program";
                RequestError::new(Code::NotFound, text)
            })?
        } else {
            // SAFETY: not NULL; C gives a text that ends with NUL.
            OsStr::from_bytes(unsafe { bytes(socket, "the socket") }?).to_owned()
        };
        let client = Client::connect(&PathBuf::from(path), job)?;
        let boxed = Box::into_raw(Box::new(tarn_connection(client)));
        // SAFETY: as above.
        unsafe { connection.write(boxed) };
        Ok(())
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_connect(
    socket: *const c_char,
    connection: *mut *mut tarn_connection,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe { open(socket, None, connection) }
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_connect_job(
    socket: *const c_char,
    job: u64,
    connection: *mut *mut tarn_connection,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe { open(socket, Some(job), connection) }
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_close(connection: *mut tarn_connection) {
    if !connection.is_null() {
        guard(|| {
            // SAFETY: it came from `Box::into_raw` in `open`, and the header asks to close it once.
            drop(unsafe { Box::from_raw(connection) });
            Ok(())
        });
    }
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_task_init(task: *mut tarn_task) {
    if !task.is_null() {
        // SAFETY: not NULL; C gives a valid place.
        unsafe {
            task.write(tarn_task {
                size: tarn_task::SIZE,
                kind: 0,
                verify: 0,
                flags: 0,
                priority: 100,
                after_count: 0,
                after: std::ptr::null(),
                deadline_ns: 0,
                rate: 0,
                from: tarn_place::NOWHERE,
                to: tarn_place::NOWHERE,
            });
        }
    }
}

/// The outcome of each task: those that could be read were submitted, in order.
fn each(
    read: Vec<Result<TaskSpec, RequestError>>,
    taken: Vec<Result<u64, RequestError>>,
) -> Vec<Result<u64, RequestError>> {
    let mut taken = taken.into_iter();
    let none = || {
        Err(RequestError::new(
            Code::Internal,
            "tarnd did not answer for it",
        ))
    };
    let all = read.into_iter();
    all.map(|task| task.and_then(|_| taken.next().unwrap_or_else(none)))
        .collect()
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_submit(
    connection: *mut tarn_connection,
    tasks: *const tarn_task,
    count: usize,
    ids: *mut u64,
    codes: *mut i32,
) -> c_int {
    guard(|| {
        not_null(ids, "where the ids go")?;
        // SAFETY: as the header asks.
        let (client, tasks) = unsafe { (client(connection)?, list(tasks, count, "tasks")?) };
        // SAFETY: as the header asks.
        let read = tasks.iter().map(|task| unsafe { task.read() });
        let read: Vec<Result<TaskSpec, RequestError>> = read.collect();
        let good: Vec<TaskSpec> = read.iter().flatten().cloned().collect();
        let results = match client.submit(&good) {
            Ok(taken) => each(read, taken),
            Err(why) => {
                // Nothing was taken.
                // SAFETY: the header demands space for `count`.
                unsafe {
                    write(ids, tasks.iter().map(|_| 0));
                    write(codes, tasks.iter().map(|_| why.code.number()));
                }
                return Err(why);
            }
        };
        let code =
            |r: &Result<u64, RequestError>| r.as_ref().map_or_else(|e| e.code.number(), |_| 0);
        // SAFETY: the header demands space for `count`.
        unsafe {
            write(ids, results.iter().map(|r| *r.as_ref().unwrap_or(&0)));
            write(codes, results.iter().map(code));
        }
        results
            .into_iter()
            .find_map(Result::err)
            .map_or(Ok(()), Err)
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_wait(
    connection: *mut tarn_connection,
    ids: *const u64,
    count: usize,
    any: c_int,
    timeout_ns: i64,
    outcomes: *mut tarn_outcome,
    ended: *mut usize,
) -> c_int {
    guard(|| {
        not_null(ended, "where the number goes")?;
        // SAFETY: not NULL; C gives a valid place.
        unsafe { ended.write(0) };
        // SAFETY: as the header asks.
        let (client, ids) = unsafe { (client(connection)?, list(ids, count, "ids")?) };
        if count > 0 {
            not_null(outcomes, "where the outcomes go")?;
        }
        let until = if any != 0 {
            WaitCondition::Any
        } else {
            WaitCondition::All
        };
        let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
        let (found, over) = client.wait_for(ids, until, timeout)?;
        // SAFETY: there are at most `count`, for which the header demands space.
        unsafe {
            write(outcomes, found.iter().map(tarn_outcome::from));
            ended.write(found.len());
        }
        let enough = match until {
            WaitCondition::Any => count == 0 || !found.is_empty(),
            WaitCondition::All => found.len() == count,
        };
        if over && !enough {
            let text = format!("{} of {count} tasks have ended in time", found.len());
            return Err(RequestError::new(Code::TimedOut, text));
        }
        Ok(())
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_status(
    connection: *mut tarn_connection,
    ids: *const u64,
    count: usize,
    status: *mut tarn_status,
) -> c_int {
    guard(|| {
        // SAFETY: as the header asks.
        let (client, ids) = unsafe { (client(connection)?, list(ids, count, "ids")?) };
        if count > 0 {
            not_null(status, "where the status goes")?;
        }
        let found = client.status(ids)?;
        // SAFETY: the header demands space for `count`.
        unsafe { write(status, found.iter().take(count).map(tarn_status::from)) };
        Ok(())
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_cancel(
    connection: *mut tarn_connection,
    ids: *const u64,
    count: usize,
    codes: *mut i32,
) -> c_int {
    guard(|| {
        // SAFETY: as the header asks.
        let (client, ids) = unsafe { (client(connection)?, list(ids, count, "ids")?) };
        let results = client.cancel(ids)?;
        let code = |r: &CancelResult| match r {
            CancelResult::Cancelled => 0,
            CancelResult::Over => Code::Exists.number(),
            CancelResult::Unknown => Code::NotFound.number(),
        };
        // SAFETY: the header demands space for `count`.
        unsafe { write(codes, results.iter().take(count).map(code)) };
        Ok(())
    })
}

/// # Safety
/// As for `tarn_pause` in the header.
unsafe fn pause(
    connection: *mut tarn_connection,
    ids: *const u64,
    count: usize,
    codes: *mut i32,
    call: impl Fn(&Client, &[u64]) -> tarn_client::Result<Vec<PauseResult>>,
) -> c_int {
    guard(|| {
        // SAFETY: as the header asks.
        let (client, ids) = unsafe { (client(connection)?, list(ids, count, "ids")?) };
        let results = call(client, ids)?;
        let code = |r: &PauseResult| match r {
            PauseResult::Done => 0,
            PauseResult::Over => Code::Exists.number(),
            PauseResult::Unknown => Code::NotFound.number(),
        };
        // SAFETY: the header demands space for `count`.
        unsafe { write(codes, results.iter().take(count).map(code)) };
        Ok(())
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_pause(
    connection: *mut tarn_connection,
    ids: *const u64,
    count: usize,
    codes: *mut i32,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe { pause(connection, ids, count, codes, Client::pause) }
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_resume(
    connection: *mut tarn_connection,
    ids: *const u64,
    count: usize,
    codes: *mut i32,
) -> c_int {
    // SAFETY: as the header asks.
    unsafe { pause(connection, ids, count, codes, Client::resume) }
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_job_pause(
    connection: *mut tarn_connection,
    job: u64,
    on: c_int,
) -> c_int {
    // SAFETY: as the header asks.
    guard(|| unsafe { client(connection) }?.pause_job(job, on != 0))
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_pause_all(connection: *mut tarn_connection, on: c_int) -> c_int {
    // SAFETY: as the header asks.
    guard(|| unsafe { client(connection) }?.pause_all(on != 0))
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_memory_register(
    connection: *mut tarn_connection,
    memfd: c_int,
    length: u64,
    region: *mut u32,
) -> c_int {
    guard(|| {
        not_null(region, "where the region's number goes")?;
        // SAFETY: as the header asks.
        let client = unsafe { client(connection) }?;
        if memfd < 0 {
            return Err(invalid("the descriptor is negative"));
        }
        // SAFETY: the header demands an open descriptor; one that is not makes the call fail.
        let memfd = unsafe { BorrowedFd::borrow_raw(memfd) };
        let number = client.register(memfd, length)?;
        // SAFETY: not NULL; C gives a valid place.
        unsafe { region.write(number) };
        Ok(())
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_memory_unregister(
    connection: *mut tarn_connection,
    region: u32,
) -> c_int {
    // SAFETY: as the header asks.
    guard(|| unsafe { client(connection) }?.unregister(region))
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_spaces(
    connection: *mut tarn_connection,
    spaces: *mut tarn_space,
    count: *mut usize,
) -> c_int {
    guard(|| {
        not_null(count, "the number")?;
        // SAFETY: as the header asks.
        let found = unsafe { client(connection) }?.spaces()?;
        // SAFETY: not NULL; the header demands space for so many.
        unsafe {
            let capacity = count.read();
            write(spaces, found.iter().take(capacity).map(tarn_space::from));
            count.write(found.len());
        }
        Ok(())
    })
}

/// # Safety
/// As for [`text`] and [`bytes`].
unsafe fn space(
    name: *const c_char,
    folder: *const c_char,
    capacity: u64,
    quota: u64,
) -> Result<(String, SpaceSpec), RequestError> {
    // SAFETY: as the caller says.
    let (name, root) = unsafe { (text(name, "the name")?, bytes(folder, "the folder")?) };
    let everyone = Access {
        read: true,
        write: true,
        manage: false,
    };
    let spec = SpaceSpec {
        root: root.into(),
        capacity,
        quota,
        slots: 0,
        everyone,
        users: Vec::new(),
    };
    Ok((name, spec))
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_space_make(
    connection: *mut tarn_connection,
    name: *const c_char,
    folder: *const c_char,
    capacity: u64,
    quota: u64,
) -> c_int {
    guard(|| {
        // SAFETY: as the header asks.
        let (name, spec) = unsafe { space(name, folder, capacity, quota) }?;
        // SAFETY: as the header asks.
        unsafe { client(connection) }?.change_space(SpaceChange::Make { name, spec })
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_space_change(
    connection: *mut tarn_connection,
    name: *const c_char,
    folder: *const c_char,
    capacity: u64,
    quota: u64,
) -> c_int {
    guard(|| {
        // SAFETY: as the header asks.
        let (name, spec) = unsafe { space(name, folder, capacity, quota) }?;
        // SAFETY: as the header asks.
        unsafe { client(connection) }?.change_space(SpaceChange::Change { name, spec })
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_space_remove(
    connection: *mut tarn_connection,
    name: *const c_char,
) -> c_int {
    guard(|| {
        // SAFETY: as the header asks.
        let name = unsafe { text(name, "the name") }?;
        // SAFETY: as the header asks.
        unsafe { client(connection) }?.change_space(SpaceChange::Remove { name })
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_job_register(
    connection: *mut tarn_connection,
    job: u64,
    user: u32,
    spaces: *const *const c_char,
    quotas: *const u64,
    count: usize,
) -> c_int {
    guard(|| {
        // SAFETY: as the header asks.
        let (spaces, quotas) = unsafe {
            (
                list(spaces, count, "spaces")?,
                list(quotas, count, "quotas")?,
            )
        };
        let limit = |(space, quota): (&*const c_char, &u64)| {
            Ok(Limit {
                // SAFETY: as the header asks.
                space: unsafe { text(*space, "a space") }?,
                quota: *quota,
            })
        };
        let limits = spaces.iter().zip(quotas).map(limit);
        let limits = limits.collect::<Result<Vec<_>, RequestError>>()?;
        // SAFETY: as the header asks.
        let client = unsafe { client(connection) }?;
        client.change_job(JobChange::Register { job, user, limits })
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_job_unregister(connection: *mut tarn_connection, job: u64) -> c_int {
    // SAFETY: as the header asks.
    guard(|| unsafe { client(connection) }?.change_job(JobChange::Unregister { job }))
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_job_add_process(
    connection: *mut tarn_connection,
    job: u64,
    pid: i32,
) -> c_int {
    // SAFETY: as the header asks.
    guard(|| unsafe { client(connection) }?.change_job(JobChange::AddProcess { job, pid }))
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_job_remove_process(
    connection: *mut tarn_connection,
    job: u64,
    pid: i32,
) -> c_int {
    // SAFETY: as the header asks.
    guard(|| unsafe { client(connection) }?.change_job(JobChange::RemoveProcess { job, pid }))
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_stats(
    connection: *mut tarn_connection,
    stats: *mut tarn_stats,
) -> c_int {
    guard(|| {
        not_null(stats, "where the counts go")?;
        // SAFETY: as the header asks.
        let found = unsafe { client(connection) }?.stats()?;
        // SAFETY: not NULL; C gives a valid place.
        unsafe { stats.write(tarn_stats::from(&found)) };
        Ok(())
    })
}

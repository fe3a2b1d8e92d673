//! Accounts of what is taken and given back: bytes, cores, counts. An account that would go below zero, or beyond its type, is a fault of
//! tarn and panics: what was given back twice is not hidden by a clamp. (Time saturates; it is no account.)

/// A number that things are taken from and given back to.
pub trait Account: Sized + Copy {
    /// The sum, if it can be held.
    fn plus(self, amount: Self) -> Option<Self>;
    /// The difference, if it is not below zero.
    fn minus(self, amount: Self) -> Option<Self>;
}

macro_rules! accounts {
    ($($number:ty),*) => { $(
        impl Account for $number {
            fn plus(self, amount: Self) -> Option<Self> {
                self.checked_add(amount)
            }
            fn minus(self, amount: Self) -> Option<Self> {
                self.checked_sub(amount)
            }
        }
    )* };
}
accounts!(u32, u64, usize);

/// Adds to an account.
///
/// # Panics
/// When the sum is larger than its type can hold.
///
/// # Examples
/// ```
/// let mut reserved = 10u64;
/// tarn_types::account::add(&mut reserved, 5, "bytes reserved");
/// assert_eq!(reserved, 15);
/// ```
#[track_caller]
pub fn add<T: Account + std::fmt::Display>(account: &mut T, amount: T, of: &str) {
    match account.plus(amount) {
        Some(sum) => *account = sum,
        None => panic!("{of}: {amount} more than {account} cannot be counted"),
    }
}

/// Takes from an account.
///
/// # Panics
/// When it has less than that: what is given back was not taken, or was given back before.
///
/// # Examples
/// ```
/// let mut reserved = 10u64;
/// tarn_types::account::sub(&mut reserved, 10, "bytes reserved");
/// assert_eq!(reserved, 0);
/// ```
#[track_caller]
pub fn sub<T: Account + std::fmt::Display>(account: &mut T, amount: T, of: &str) {
    match account.minus(amount) {
        Some(rest) => *account = rest,
        None => panic!("{of}: {amount} cannot be taken from {account}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{add, sub};

    #[test]
    fn what_was_taken_is_given_back_once() {
        let mut cores = 4u32;
        sub(&mut cores, 4, "cores");
        add(&mut cores, 4, "cores");
        assert_eq!(cores, 4);
    }

    #[test]
    #[should_panic(expected = "bytes reserved: 2 cannot be taken from 1")]
    fn an_account_never_goes_below_zero() {
        sub(&mut 1u64, 2, "bytes reserved");
    }

    #[test]
    #[should_panic(expected = "cannot be counted")]
    fn an_account_never_wraps() {
        add(&mut u64::MAX.clone(), 1, "bytes");
    }
}

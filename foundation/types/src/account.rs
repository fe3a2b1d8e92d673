//! Accounts of resources that are taken and given back: bytes, cores, counts. An account that would go below zero, or beyond its
//! type, is a fault of tarn: debug builds, and so all tests, panic. A release build stays at the limit, so that no run is stopped
//! by it, nor each resume of that run. (Time saturates; it is no account.)

/// A number that things are taken from and given back to.
pub trait Account: Sized + Copy {
    /// The most that its type holds.
    const MOST: Self;
    /// None of it.
    const NONE: Self;
    /// The sum, if it can be held.
    fn plus(self, amount: Self) -> Option<Self>;
    /// The difference, if it is not below zero.
    fn minus(self, amount: Self) -> Option<Self>;
}

macro_rules! accounts {
    ($($number:ty),*) => { $(
        impl Account for $number {
            const MOST: Self = Self::MAX;
            const NONE: Self = 0;
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
/// In a debug build, when the sum is larger than its type can hold.
///
/// # Examples
/// ```
/// let mut reserved = 10u64;
/// tarn_types::account::add(&mut reserved, 5, "bytes reserved");
/// assert_eq!(reserved, 15);
/// ```
#[track_caller]
pub fn add<T: Account + std::fmt::Display>(account: &mut T, amount: T, of: &str) {
    let sum = account.plus(amount);
    debug_assert!(
        sum.is_some(),
        "{of}: {amount} more than {account} cannot be counted"
    );
    *account = sum.unwrap_or(T::MOST);
}

/// Takes from an account.
///
/// # Panics
/// In a debug build, when it has less than that: the amount was not taken, or was given back before.
///
/// # Examples
/// ```
/// let mut reserved = 10u64;
/// tarn_types::account::sub(&mut reserved, 10, "bytes reserved");
/// assert_eq!(reserved, 0);
/// ```
#[track_caller]
pub fn sub<T: Account + std::fmt::Display>(account: &mut T, amount: T, of: &str) {
    let rest = account.minus(amount);
    debug_assert!(
        rest.is_some(),
        "{of}: {amount} cannot be taken from {account}"
    );
    *account = rest.unwrap_or(T::NONE);
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

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "bytes reserved: 2 cannot be taken from 1")]
    fn an_account_never_goes_below_zero() {
        sub(&mut 1u64, 2, "bytes reserved");
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "cannot be counted")]
    fn an_account_never_wraps() {
        add(&mut u64::MAX.clone(), 1, "bytes");
    }
}

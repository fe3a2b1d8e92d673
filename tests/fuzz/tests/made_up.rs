//! Every target reads its seeds, and many bytes that are made up of them: the same at each run.

use tarn_fuzz::{TARGETS, Target};

/// Made-up inputs of each target.
const TRIES: usize = 10_000;
/// Bytes of one.
const MAX_BYTES: usize = 1 << 14;

/// Numbers that look random (xorshift64*).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        high as usize % n.max(1)
    }
}

/// Something else made of bytes: a few changes of them.
fn changed(dice: &mut Dice, from: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = from.to_vec();
    for _ in 0..=dice.below(4) {
        let at = dice.below(bytes.len() + 1);
        match dice.below(6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, dice.below(256) as u8),
            2 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            3 if at < bytes.len() => {
                let end = (at + 1 + dice.below(32)).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let from = dice.below(other.len() + 1);
                let end = (from + dice.below(64)).min(other.len());
                bytes.splice(at..at, other[from..end].iter().copied());
            }
            _ => {
                let odd = [0u8, 0xff, b'"', b'{', b'\n', b'\'', 0x80, b'9'][dice.below(8)];
                let many = dice.below(20);
                bytes.splice(at..at, std::iter::repeat_n(odd, many));
            }
        }
    }
    bytes.truncate(MAX_BYTES);
    bytes
}

fn tried(target: &Target) {
    let mut pool = (target.seeds)();
    assert!(!pool.is_empty(), "{}", target.name);
    pool.iter().for_each(|seed| (target.run)(seed));
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for _ in 0..TRIES {
        let from = pool[dice.below(pool.len())].clone();
        let other = pool[dice.below(pool.len())].clone();
        let made = changed(&mut dice, &from, &other);
        (target.run)(&made);
        if pool.len() < 64 {
            pool.push(made);
        }
    }
}

#[test]
fn made_up_bytes_do_no_harm() {
    for target in TARGETS {
        tried(target);
    }
}

#[test]
fn each_target_has_a_name_of_its_own() {
    for target in TARGETS {
        let same = TARGETS.iter().filter(|other| other.name == target.name);
        assert_eq!(same.count(), 1, "{}", target.name);
        assert!(tarn_fuzz::named(target.name).is_some());
    }
    assert!(tarn_fuzz::named("nobody").is_none());
}

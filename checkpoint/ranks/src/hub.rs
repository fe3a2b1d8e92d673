//! The hub, in rank 0's process: it has a line to each rank, brings words together, and knows the ranks that are gone.

use crate::greet::{GreetingReply, MeetingId, RankGreeting};
use crate::line::{FrameConnection, malformed};
use crate::socket::RankSocket;
use crate::wire::{FromHub, Least, MAX_WORDS, ToHub};
use std::collections::VecDeque;
use std::sync::Arc;
use tarn_ports::RankProgress;

/// Exchanges that a rank may have begun without an answer to the first: earlier ones were given up for lack of time.
pub(crate) const MAX_AHEAD: usize = 4;
/// Frames that are taken from one line before it is the next one's turn.
const IN_TURN: usize = 16;
/// Ranks that a text names.
const NAMED: usize = 8;

#[derive(Debug)]
enum Stand {
    Awaited,
    Here { process: u32 },
    Gone { in_order: bool, why: String },
}

#[derive(Debug)]
struct HubMember {
    stand: Stand,
    line: Option<FrameConnection>,
    /// Its words in exchanges that are not complete, as they came.
    words: VecDeque<Vec<u8>>,
    /// How many it has sent.
    sent_words: u64,
    reached: RankProgress,
    /// The values that it was sent last.
    least: Least,
}

#[derive(Debug)]
pub(crate) struct Hub {
    identity: MeetingId,
    seats: Vec<HubMember>,
    least: Least,
    /// A rank has reported progress since `least` was computed.
    progressed: bool,
}

/// `rank 3`, `ranks 3, 4 and 7 others`.
fn names(ranks: &[usize]) -> String {
    let named: Vec<String> = ranks.iter().take(NAMED).map(usize::to_string).collect();
    let (s, named) = (if ranks.len() == 1 { "" } else { "s" }, named.join(", "));
    match ranks.len().saturating_sub(NAMED) {
        0 => format!("rank{s} {named}"),
        others => format!("rank{s} {named} and {others} others"),
    }
}

impl Hub {
    pub(crate) fn new(ranks: u32, identity: MeetingId) -> Self {
        let seat = || HubMember {
            stand: Stand::Awaited,
            line: None,
            words: VecDeque::new(),
            sent_words: 0,
            reached: RankProgress::default(),
            least: Least::default(),
        };
        Self {
            identity,
            seats: (0..ranks).map(|_| seat()).collect(),
            least: Least::default(),
            progressed: false,
        }
    }

    /// Gives a rank that has come its place, or answers why not.
    pub(crate) fn admit(&mut self, who: &RankGreeting, socket: RankSocket) {
        let answer = self.place(who);
        let mut line = FrameConnection::new(socket, ToHub::MAX);
        line.push(answer.encode().into());
        if !matches!(answer, GreetingReply::Welcome(_)) {
            // So few bytes have space in a new connection.
            let _ = line.flush();
            return;
        }
        for (rank, seat) in self.seats.iter().enumerate() {
            if let Stand::Gone { in_order, why } = &seat.stand {
                line.push(FromHub::Gone(rank as u32, *in_order, why.clone()).frame());
            }
        }
        let seat = &mut self.seats[who.rank as usize];
        seat.line = Some(line);
        seat.stand = Stand::Here {
            process: who.process,
        };
    }

    fn place(&self, who: &RankGreeting) -> GreetingReply {
        let ranks = self.seats.len();
        if who.ranks as usize != ranks {
            return GreetingReply::Refused(format!(
                "there are {ranks} ranks here, and rank {} is one of {}: start all with one number, or give this program another name",
                who.rank, who.ranks
            ));
        }
        let Some(seat) = self.seats.get(who.rank as usize) else {
            return GreetingReply::Refused(format!(
                "there are {ranks} ranks here, and no {}",
                who.rank
            ));
        };
        match &seat.stand {
            Stand::Awaited => GreetingReply::Welcome(self.identity),
            Stand::Here { process } => {
                GreetingReply::Taken(format!("process {process} is its rank {}", who.rank))
            }
            Stand::Gone { why, .. } => GreetingReply::Refused(format!(
                "rank {} was here already and is gone ({why}): restart all ranks",
                who.rank
            )),
        }
    }

    /// The connections that are open: of which rank, and whether there is something to send.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = (usize, Arc<RankSocket>, bool)> {
        let seats = self.seats.iter().enumerate();
        seats.filter_map(|(rank, seat)| {
            let line = seat.line.as_ref()?;
            Some((rank, Arc::clone(&line.socket), !line.idle()))
        })
    }

    /// Takes the messages of a rank that have come.
    pub(crate) fn receive(&mut self, rank: usize) {
        for _ in 0..IN_TURN {
            let Some(line) = &mut self.seats[rank].line else {
                return;
            };
            let received = match line.next() {
                Ok(None) => return,
                Ok(Some(frame)) => self.act(rank, frame).ok_or_else(malformed),
                Err(e) => Err(e),
            };
            if let Err(e) = received {
                return self.gone(rank, false, &e.to_string());
            }
        }
    }

    /// `None`: no member sends that.
    fn act(&mut self, rank: usize, frame: Vec<u8>) -> Option<()> {
        let seat = &mut self.seats[rank];
        match ToHub::parse(&frame)? {
            ToHub::Word(number, _) => {
                if number != seat.sent_words || seat.words.len() == MAX_AHEAD {
                    return None;
                }
                seat.sent_words += 1;
                seat.words.push_back(frame);
                self.answer(number);
            }
            ToHub::Progress(reached) => {
                seat.reached = reached;
                self.progressed = true;
            }
            ToHub::Who(number) => {
                let seats = self.seats.iter().enumerate();
                let missing = seats
                    .filter(|(_, s)| s.sent_words <= number)
                    .map(|(r, _)| r);
                let who = names(&missing.collect::<Vec<_>>());
                self.send_frame(rank, FromHub::Missing(number, who).frame());
            }
            ToHub::Leave => self.gone(rank, true, "it has ended"),
        }
        Some(())
    }

    /// Sends all ranks the words of an exchange if everybody's are there.
    fn answer(&mut self, number: u64) {
        if self.seats.iter().any(|s| s.sent_words <= number) {
            return;
        }
        let words: Vec<_> = self.seats.iter_mut().map(|s| s.words.pop_front()).collect();
        let is_of_it = |word: &Option<Vec<u8>>| {
            let word = word.as_deref().and_then(ToHub::parse);
            matches!(word, Some(ToHub::Word(of, _)) if of == number)
        };
        assert!(
            words.iter().all(is_of_it),
            "exchange {number} ends without the word of each rank"
        );
        let words = || {
            words.iter().flatten().map(|w| match ToHub::parse(w) {
                Some(ToHub::Word(_, word)) => word,
                _ => b"",
            })
        };
        let sum: usize = words().map(<[u8]>::len).sum();
        let answer = match sum > MAX_WORDS {
            true => FromHub::No(
                number,
                format!("all words of an exchange together are {sum} bytes, at most {MAX_WORDS}"),
            )
            .frame(),
            false => FromHub::words(number, words()),
        };
        for rank in 0..self.seats.len() {
            self.send_frame(rank, Arc::clone(&answer));
        }
    }

    fn least(&self) -> Least {
        let all = || (0..).zip(self.seats.iter().map(|s| s.reached));
        let last = |count: usize| all().min_by_key(|(_, r)| r.counts()[count]);
        Least {
            reached: all()
                .map(|(_, r)| r)
                .reduce(RankProgress::and)
                .unwrap_or_default(),
            by: [0, 1, 2].map(|count| last(count).map_or(0, |(rank, _)| rank)),
        }
    }

    fn send_frame(&mut self, rank: usize, frame: Arc<[u8]>) {
        if let Some(line) = &mut self.seats[rank].line {
            line.push(frame);
        }
    }

    /// A rank has ended, or is lost: everybody is notified.
    fn gone(&mut self, rank: usize, in_order: bool, why: &str) {
        self.seats[rank].line = None;
        let why = why.to_owned();
        let frame = FromHub::Gone(rank as u32, in_order, why.clone()).frame();
        self.seats[rank].stand = Stand::Gone { in_order, why };
        for other in 0..self.seats.len() {
            self.send_frame(other, Arc::clone(&frame));
        }
    }

    /// Sends as much as there is space for.
    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.progressed) {
            self.least = self.least();
        }
        for rank in 0..self.seats.len() {
            let seat = &mut self.seats[rank];
            let Some(line) = &mut seat.line else {
                continue;
            };
            let mut sent = line.flush();
            // Only the newest, once all else is sent: the queue of a slow rank does not grow with the reports of others.
            if sent.is_ok() && line.idle() && seat.least != self.least {
                seat.least = self.least;
                line.push(FromHub::Least(self.least).frame());
                sent = line.flush();
            }
            if let Err(e) = sent {
                self.gone(rank, false, &e.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn many_ranks_are_named_by_the_first() {
        assert_eq!(names(&[3]), "rank 3");
        assert_eq!(names(&[3, 5]), "ranks 3, 5");
        let many: Vec<usize> = (0..10).collect();
        assert_eq!(names(&many), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 others");
    }
}

//! The accounting of a cluster from a seed: a queue in the order of submission, which jobs with data lines pass.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::io::Write;
use tarn_types::random::Random;

const START: u64 = 1_790_000_000;
const CORES: u32 = 48;
/// A job has up to one of so many parts of the machine.
const LARGEST_PART: u32 = 50;
const SHORTEST: u64 = 60;
const LONGEST: u64 = 7_200;
/// Users request up to so many times as much.
const MOST_REQUESTED: u64 = 3;
/// One job in so many has data lines, one in so many has another quality of service.
const WITH_DATA: u64 = 10;
const HIGH: u64 = 5;
/// Node-time that jobs bring, in hundredths of the machine's: the queue grows, and is worked off at the end.
const LOAD: u64 = 105;

#[derive(Debug, Clone, Copy)]
pub(super) struct HistorySettings {
    pub(super) jobs: u32,
    pub(super) nodes: u32,
    pub(super) seed: u64,
}

/// A file of `jobcomp/filetxt`, and the numbers of the jobs with data lines.
#[derive(Debug, Default)]
pub(super) struct JobHistory {
    pub(super) text: Vec<u8>,
    pub(super) data_jobs: BTreeSet<u32>,
}

#[derive(Debug, Clone)]
struct BenchJob {
    number: u32,
    submitted: u64,
    nodes: u32,
    run: u64,
    limit_minutes: u64,
    is_high: bool,
}

struct BenchMachine {
    free: Vec<u32>,
    running: BinaryHeap<Reverse<(u64, u32)>>,
    held: std::collections::HashMap<u32, (BenchJob, u64, Vec<u32>)>,
}

impl JobHistory {
    pub(super) fn new(settings: HistorySettings) -> Self {
        let mut random = Random::new(settings.seed);
        let mut this = Self::default();
        let mut machine = BenchMachine {
            free: (0..settings.nodes).rev().collect(),
            running: BinaryHeap::new(),
            held: std::collections::HashMap::new(),
        };
        let largest = (settings.nodes / LARGEST_PART).max(1);
        // Between two submissions on average: the node-time of a job over that of the machine.
        let mean = u64::from(largest + 1) * (SHORTEST + LONGEST) / 4;
        let between = 100 * mean / (u64::from(settings.nodes) * LOAD);
        let (mut queue, mut first) = (VecDeque::new(), VecDeque::new());
        let mut now = START;
        for number in 1..=settings.jobs {
            now += random.below(2 * between + 1);
            this.until(now, &mut machine, (&mut first, &mut queue));
            let run = random.within(SHORTEST..LONGEST);
            let job = BenchJob {
                number,
                submitted: now,
                nodes: random.within(1..u64::from(largest) + 1) as u32,
                run,
                limit_minutes: run * random.within(1..MOST_REQUESTED + 1) / 60 + 1,
                is_high: random.below(HIGH) == 0,
            };
            if random.below(WITH_DATA) == 0 {
                this.data_jobs.insert(number);
                first.push_back(job);
            } else {
                queue.push_back(job);
            }
            machine.begin(now, (&mut first, &mut queue));
        }
        this.until(u64::MAX, &mut machine, (&mut first, &mut queue));
        this
    }

    /// Jobs that end until then, and those that begin in their place.
    fn until(
        &mut self,
        now: u64,
        machine: &mut BenchMachine,
        (first, queue): (&mut VecDeque<BenchJob>, &mut VecDeque<BenchJob>),
    ) {
        while let Some(Reverse((end, number))) = machine.running.peek().copied()
            && end <= now
        {
            machine.running.pop();
            if let Some((job, start, nodes)) = machine.held.remove(&number) {
                self.note(&job, (start, end), &nodes);
                machine.free.extend(nodes);
            }
            machine.begin(end, (&mut *first, &mut *queue));
        }
    }

    /// A record as Slurm writes it where it runs with `SLURM_TIME_FORMAT=%s`.
    fn note(&mut self, job: &BenchJob, (start, end): (u64, u64), nodes: &[u32]) {
        let mut sorted = nodes.to_vec();
        sorted.sort_unstable();
        let names: Vec<String> = sorted.iter().map(u32::to_string).collect();
        let (names, count, cpus) = (names.join(","), nodes.len(), nodes.len() as u32 * CORES);
        let (number, qos) = (job.number, if job.is_high { "high" } else { "normal" });
        let user = 1000 + number % 500;
        let submitted = job.submitted;
        let limit = job.limit_minutes;
        // A vector takes all that is written to it.
        let _ = writeln!(
            self.text,
            "JobId={number} UserId=user{user}({user}) GroupId=users(100) Name=job JobState=COMPLETED Partition=all TimeLimit={limit} \
             StartTime={start} EndTime={end} NodeList=n[{names}] NodeCnt={count} ProcCnt={cpus} WorkDir=/home/user{user} \
             ReservationName= Tres=cpu={cpus},mem={count}G,node={count},billing={cpus} Account=science QOS={qos} WcKey= \
             Cluster=unknown SubmitTime={submitted} EligibleTime={submitted} DerivedExitCode=0:0 ExitCode=0:0 "
        );
    }
}

impl BenchMachine {
    /// Jobs with data lines first, each queue in its order.
    fn begin(
        &mut self,
        now: u64,
        (first, queue): (&mut VecDeque<BenchJob>, &mut VecDeque<BenchJob>),
    ) {
        for queue in [first, queue] {
            while let Some(job) = queue.front()
                && job.nodes as usize <= self.free.len()
            {
                let nodes = self.free.split_off(self.free.len() - job.nodes as usize);
                if let Some(job) = queue.pop_front() {
                    self.running.push(Reverse((now + job.run, job.number)));
                    self.held.insert(job.number, (job, now, nodes));
                }
            }
        }
    }
}

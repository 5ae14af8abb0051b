//! Commands that are run inside a sandbox that is up already, by the daemon there (execd): prepare a sandbox that only
//! waits, record it, start its command.
//!
//! The daemon forgets what it ran when it is started again, lists nothing, and its answer may be lost. So it is only
//! asked to run [`scripts`], which may run any number of times: what counts are files in the sandbox that one of them
//! makes and no other. They are read with the daemon's download of files and understood by [`inside`]; no answer
//! to a request to run something, and no status of a command, is ever believed.
//!
//! What is held and not recorded never runs. It ends by itself, expires soon after, and is deleted with what is
//! recorded at the end of its Job.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use ayatori_controller::references::{self, References};
use ayatori_core::admission::Admissible;
use ayatori_core::conditions::PENDING;
use ayatori_core::execution::{
    Answer, End, ExecutionName, Exit, Gone, Prospect, Running, State, Stopper, Why,
};
use ayatori_core::job::Job;
use ayatori_core::parameters::{OpenSandboxExecutionParameters, OpenSandboxExecutionParametersSpec as Spec};
use ayatori_core::stage::{Accepted, Recorded};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use crate::amounts::amounts;
use crate::client::Client;
use crate::expiry;
use crate::failure::Failure;
use crate::insides::{Reading, Spot};
use crate::mapping::{self, Phase};
use crate::metadata;
use crate::prospect;
use crate::reached::{Reached, uid, why};
use crate::reasons::{scheduling, unavailable, unreached};
use crate::request::{self, unsupported};
use crate::server;
use crate::wire::{CreateSandbox, Extensions, Sandbox};
use crate::wrapper::{self, Evidence};

mod inside;
mod scripts;

pub(crate) use inside::Inside;
use inside::{Never, Since};
pub(crate) use scripts::HoldId;

/// When what was asked for is looked at.
const SOON: SignedDuration = SignedDuration::from_millis(100);
/// When a stop that shows no effect is looked at again.
const AGAIN: SignedDuration = SignedDuration::from_secs(1);
/// How much longer than it waits a sandbox may live: its clock begins when it is up.
const MARGIN: Duration = Duration::from_secs(300);
/// How long a sandbox that does not take a stop is spared before it is deleted all the same.
const DEAF: SignedDuration = SignedDuration::from_secs(30);

// ------------------------------------------------------------------------------------------------ questions

/// What a Job asks for that a sandbox which is up already cannot give it.
pub(crate) fn check(job: &Job, admissible: &Admissible, spec: &Spec) -> Result<(), Why> {
    let (Some(pool), Some(template)) = (&spec.pool_ref, &spec.pool_template) else {
        return Ok(());
    };
    if job.spec.image != template.image {
        return Err(unsupported(&format!(
            "spec.image {:?}: the class takes its sandboxes from pool {pool:?}, whose image is {:?}; use that, or \
             another class",
            job.spec.image, template.image
        )));
    }
    let wanted = amounts(admissible.resources.limits.as_ref())?;
    let offered = amounts(template.limits.as_ref())?;
    if wanted != offered {
        return Err(unsupported(&format!(
            "spec.resources.limits: the class takes its sandboxes from pool {pool:?}, whose limits are {}, and the \
             Job's are {}; use those, or another class",
            limits(&offered),
            limits(&wanted)
        )));
    }
    if !job.spec.image_pull_secrets.is_empty() {
        return Err(unsupported(
            "spec.imagePullSecrets: the sandboxes of a pool have their image already; leave it out",
        ));
    }
    Ok(())
}

fn limits(amounts: &BTreeMap<String, String>) -> String {
    if amounts.is_empty() {
        return "none".to_owned();
    }
    let each: Vec<_> = amounts
        .iter()
        .map(|(name, amount)| format!("{name} {amount}"))
        .collect();
    each.join(" and ")
}

/// Whether what the command sees can be handed over in this way.
pub(crate) async fn can_start(job: &Job, spec: &Spec, references: &References) -> references::Answer<()> {
    let environment = match request::environment(job, spec, references).await? {
        Ok(environment) => environment,
        Err(why) => return Ok(Err(why)),
    };
    if let Err(why) = scripts::check(&environment) {
        return Ok(Err(why));
    }
    Ok(request::image(job, spec, references).await?.map(drop))
}

/// What exists for a Job of which nothing is recorded.
pub(crate) async fn survey(
    job: Accepted<'_>,
    parameters: &OpenSandboxExecutionParameters,
    reached: &Reached,
    hold: Duration,
) -> Result<Prospect, Why> {
    let job = job.job();
    let sandboxes = prepared(job, reached).await?;
    if let Some(stranger) = sandboxes.iter().find(|s| !metadata::is_of(&s.metadata, job)) {
        return Ok(Prospect::Conflict(prospect::foreign(&stranger.id)));
    }
    let (over, mut alive): (Vec<_>, Vec<_>) = sandboxes
        .into_iter()
        .partition(|sandbox| matches!(mapping::phase(sandbox), Phase::Over(_) | Phase::Expired));
    // Whichever is up, and of these the oldest: two replicas choose the same one, if only to save work.
    alive.sort_by(|a, b| order(a).cmp(&order(b)));
    let several = alive.len() > 1;
    let mut chosen: Option<ExecutionName> = None;
    let mut trouble = None;
    for sandbox in alive
        .iter()
        .filter(|sandbox| mapping::phase(sandbox) == Phase::Up)
    {
        match who(job, reached, sandbox).await {
            Ok(Some(hold)) => {
                // Only a backup of the Job that was restored hides one that was started.
                let taken = several && is_taken(reached, &sandbox.id, &hold).await?;
                if taken || chosen.is_none() {
                    chosen = Some(ExecutionName {
                        id: sandbox.id.clone(),
                        uid: Some(hold.to_string()),
                    });
                }
                if taken {
                    break;
                }
            }
            Ok(None) => {}
            Err(why) => trouble = Some((&sandbox.id, why)),
        }
    }
    if let Some(name) = chosen {
        return Ok(Prospect::Found(name, server::identity(parameters)));
    }
    if let Some(first) = alive.first() {
        // News of it wakes the Job; a server that shows nothing at present is said elsewhere.
        let _ = reached
            .server
            .sightings
            .follow(&uid(job), ObjectRef::from_obj(job), &first.id);
        return Ok(Prospect::Preparing(match trouble {
            None => Why::new(PENDING, format!("sandbox {} is coming up", first.id)),
            Some((id, why)) => not_answering(id, why),
        }));
    }
    Ok(over
        .iter()
        .find(|sandbox| ended_early(sandbox, hold))
        .map_or(Prospect::Absent, |sandbox| Prospect::Spoilt(spoilt(sandbox))))
}

/// What a Job waits for whose sandbox is up and whose daemon does not answer: that is how each begins, and how one goes on
/// that the server cannot reach.
fn not_answering(id: &str, why: Why) -> Why {
    let message = &why.message;
    if why.reason == PENDING {
        let message = format!("sandbox {id} is coming up, or the daemon in it cannot be reached: {message}");
        return Why::new(PENDING, message);
    }
    let message = format!(
        "sandbox {id} is up, and the daemon in it cannot be reached: {message}; see whether the server gives sandboxes an \
         address that it reaches itself"
    );
    scheduling(Why::new(why.reason, message))
}

/// The sandboxes of a Job, with the last one that was created for it, which lists may not show yet.
async fn prepared(job: &Job, reached: &Reached) -> Result<Vec<Sandbox>, Why> {
    let uid = uid(job);
    let mut sandboxes = reached.all_of(&uid).await?;
    if let Some(id) = reached.server.insides.prepared(&uid)
        && !sandboxes.iter().any(|sandbox| sandbox.id == id)
    {
        match reached.look(&id).await.map_err(why)? {
            Some(sandbox) => sandboxes.push((*sandbox).clone()),
            None => reached.server.insides.forget_prepared(&uid),
        }
    }
    Ok(sandboxes)
}

fn order(sandbox: &Sandbox) -> (Option<Timestamp>, &str) {
    (sandbox.created_at, &sandbox.id)
}

/// Who a sandbox is that is up, if it says so already. The Job is told when it does.
async fn who(job: &Job, reached: &Reached, sandbox: &Sandbox) -> Result<Option<HoldId>, Why> {
    let spot = Spot::Name {
        sandbox: sandbox.id.clone(),
        attempt: metadata::attempt(&sandbox.metadata)
            .unwrap_or_default()
            .to_owned(),
    };
    let object = ObjectRef::from_obj(job);
    let insides = &reached.server.insides;
    match insides.follow(&reached.client, &uid(job), object, &spot).await? {
        Reading::Name(name) => Ok(name),
        Reading::Command(_) => Ok(None),
    }
}

async fn is_taken(reached: &Reached, sandbox: &str, hold: &HoldId) -> Result<bool, Why> {
    let spot = Spot::Command {
        sandbox: sandbox.to_owned(),
        hold: hold.clone(),
    };
    let read = read(&reached.client, &spot).await?;
    Ok(match read {
        Reading::Command(Inside::Held | Inside::Nothing | Inside::Garbled) | Reading::Name(_) => false,
        Reading::Command(_) => true,
    })
}

/// Whether a sandbox ended before the time was over for which it would have waited.
fn ended_early(sandbox: &Sandbox, hold: Duration) -> bool {
    let (Some(created), Some(ended)) = (sandbox.created_at, sandbox.last_transition_at) else {
        return true;
    };
    u64::try_from(ended.duration_since(created).as_secs()).unwrap_or_default() < hold.as_secs()
}

fn spoilt(sandbox: &Sandbox) -> Why {
    if let Phase::Over(Some(0)) = mapping::phase(sandbox) {
        let message = "somebody stopped the sandbox before its command was started";
        return Why::new("SandboxStopped", message);
    }
    Why::new(
        "StartError",
        format!(
            "the sandbox ended before its command could be started: {}. The image needs /bin/sh, ln, mkdir, mv, rm and \
             sleep, and a /tmp that its user can write to",
            mapping::told(sandbox)
        ),
    )
}

/// Reads one thing in a sandbox.
pub(crate) async fn read(client: &Client, spot: &Spot) -> Result<Reading, Why> {
    match spot {
        Spot::Name { sandbox, attempt } => {
            let name = client
                .file(sandbox, &scripts::named(attempt))
                .await
                .map_err(why)?;
            Ok(Reading::Name(name.as_deref().and_then(HoldId::parse)))
        }
        Spot::Command { sandbox, hold } => {
            let file = async |name: &str| client.file(sandbox, &hold.file(name)).await.map_err(why);
            let end = file("end").await?;
            let start = file("start").await?;
            let held = end.is_none() && start.is_none() && file("hold").await?.is_some();
            let inside = Inside::read(hold, end.as_deref(), start.as_deref(), held);
            Ok(Reading::Command(inside))
        }
    }
}

/// Everything that is known of the recorded sandbox and its command.
pub(crate) async fn observe(job: Recorded<'_>, reached: &Reached) -> Result<State, Why> {
    let Reached { server, client } = reached;
    let (uid, id) = (uid(job.job()), job.id());
    let hold = hold_of(job)?;
    let spot = spot(job, &hold);
    // An end that was read is one, whatever became of the sandbox since.
    if let Some(Reading::Command(inside)) = server.insides.settled(&uid, &spot)
        && let Some(end) = end(&inside)
    {
        return Ok(State::Ended(end));
    }
    let object = ObjectRef::from_obj(job.job());
    let Some(sandbox) = reached.find(&uid, object.clone(), id).await? else {
        return reached.missing(job).await;
    };
    server.is_not_gone(id);
    if !metadata::is_of(&sandbox.metadata, job.job()) {
        return Ok(State::Unobservable(prospect::foreign(id)));
    }
    let inside = match server.insides.follow(client, &uid, object, &spot).await {
        Ok(Reading::Command(inside)) => inside,
        Ok(Reading::Name(_)) => Inside::Nothing,
        Err(_) if is_over(&sandbox) => return over(job, reached, &sandbox, &hold).await,
        Err(why) => return Ok(State::Unobservable(unread(&why))),
    };
    let renew_at = sandbox
        .expires_at
        .and_then(|at| expiry::renewal(job.job(), job.accepted().at(), at));
    Ok(state(&inside, job.started(), renew_at, Timestamp::now()))
}

/// What became of the recorded command, if these are the files in its sandbox, read in this order: `end`, `start`, and
/// whether there is a `hold`.
pub(crate) fn told(
    job: Recorded<'_>,
    end: Option<&str>,
    start: Option<&str>,
    hold: bool,
    now: Timestamp,
) -> Result<State, Why> {
    let inside = Inside::read(&hold_of(job)?, end, start, hold);
    Ok(state(&inside, job.started(), None, now))
}

/// What the files in a sandbox that is there mean.
fn state(inside: &Inside, started: bool, renew_at: Option<Timestamp>, now: Timestamp) -> State {
    let running = |since: Since, stopping_since| {
        State::Running(Running {
            started_at: since,
            node: None,
            stopping_since,
            renew_at,
        })
    };
    match inside {
        Inside::Held if !started => State::Held,
        Inside::Started(since) => running(*since, None),
        // By our clock: it is compared with the time of our request.
        Inside::Stopped(since) => running(*since, Some(now)),
        Inside::Ended(..) | Inside::Lost(_) | Inside::Never(_) => {
            end(inside).map_or_else(|| unknown("what is written there is no end"), State::Ended)
        }
        Inside::Held => unknown("the file is gone that showed that its command was started"),
        Inside::Nothing => unknown(
            "the files are gone that show what became of its command, or its container was started again",
        ),
        Inside::Garbled => unknown("the files that show what became of its command hold something else"),
    }
}

/// It cannot be read any more what became of the command. Only that the sandbox is gone proves its end.
fn unknown(what: &str) -> State {
    State::Gone(Gone {
        proven: false,
        why: Why::new(
            "ExecutionNotFound",
            format!("{what}; that the command has ended is certain only when the sandbox is gone"),
        ),
    })
}

/// The end that these files show.
fn end(inside: &Inside) -> Option<End> {
    let end = |exit, started_at, stopped_by| End {
        exit,
        started_at,
        finished_at: None,
        stopped_at: None,
        stopped_by,
        node: None,
        note: None,
    };
    match inside {
        Inside::Ended(since, evidence) => {
            let (exit, stopped_by) = mapping::end_by(*evidence)?;
            Some(end(exit, *since, stopped_by))
        }
        Inside::Lost(since) => Some(End {
            note: Some(
                "the container was started again while the command ran; its exit code is not known"
                    .to_owned(),
            ),
            ..end(Exit::Unmeasured, *since, Stopper::Nobody)
        }),
        Inside::Never(Never::Stopped) => Some(end(Exit::NeverStarted, None, Stopper::Nobody)),
        Inside::Never(Never::TooLate) => Some(end(too_late(), None, Stopper::Nobody)),
        Inside::Never(Never::Lost) => {
            let why = Why::new(
                "SandboxStopped",
                "somebody stopped the sandbox before its command was started",
            );
            Some(end(Exit::NeverStarted, None, Stopper::Other(why)))
        }
        Inside::Held | Inside::Started(_) | Inside::Stopped(_) | Inside::Nothing | Inside::Garbled => None,
    }
}

fn too_late() -> Exit {
    Exit::Unstartable(Why::new(
        "StartTooLate",
        "the sandbox waited for its command until its time was over, and ended; the command was not started; create \
         the Job again",
    ))
}

/// Whether no process of the sandbox runs any more. That the task of a pool's pod has ended says nothing of others.
fn is_over(sandbox: &Sandbox) -> bool {
    matches!(
        sandbox.reason.as_deref(),
        Some("CONTAINER_EXITED" | "CONTAINER_EXITED_ERROR" | "PodSucceeded" | "PodFailed" | "SandboxExpired")
    )
}

/// A sandbox that is over, and with it what it could tell but for its log.
async fn over(job: Recorded<'_>, reached: &Reached, sandbox: &Sandbox, hold: &HoldId) -> Result<State, Why> {
    let Some(log) = reached.client.log(&sandbox.id).await.map_err(why)? else {
        reached.server.sightings.note_gone(&sandbox.id);
        return reached.missing(job).await;
    };
    // What else stands there may be the command's own word.
    let late = !job.started() && wrapper::evidence(&log, &hold.to_string()) == Some(Evidence::TooLate);
    let note = format!(
        "{}; how the command ended was not read before that",
        mapping::told(sandbox)
    );
    Ok(State::Ended(End {
        exit: if late { too_late() } else { Exit::Unmeasured },
        started_at: sandbox.created_at.filter(|_| job.started()),
        finished_at: None,
        stopped_at: None,
        stopped_by: Stopper::Nobody,
        node: None,
        note: Some(note).filter(|_| !late),
    }))
}

fn unread(why: &Why) -> Why {
    Why::new(
        "BackendUnreachable",
        format!(
            "the daemon in the sandbox cannot be reached through the server: {}",
            why.message
        ),
    )
}

// -------------------------------------------------------------------------------------------------- effects

/// Creates a sandbox that waits. It gets nothing of what the command will see.
pub(crate) async fn prepare(
    job: Accepted<'_>,
    parameters: &OpenSandboxExecutionParameters,
    reached: &Reached,
    references: &References,
    hold: Duration,
) -> Answer {
    let request = match order_of(job, &parameters.spec, reached, references, hold).await {
        Ok(Ok(request)) => request,
        Ok(Err(why)) => return Answer::Rejected(why),
        Err(why) => return Answer::Unavailable(why),
    };
    match reached.create(&request).await {
        Ok(id) => {
            reached.server.insides.note_prepared(&uid(job.job()), &id);
            Answer::Later(SOON)
        }
        Err(failure) if failure.is_certain() => Answer::Rejected(scheduling(failure.why())),
        // What it has created is found, or ends by itself.
        Err(failure) => unavailable(failure),
    }
}

async fn order_of(
    job: Accepted<'_>,
    spec: &Spec,
    reached: &Reached,
    references: &References,
    hold: Duration,
) -> references::Answer<CreateSandbox> {
    let (resources, job) = (job.resources(), job.job());
    let image = match request::image(job, spec, references).await? {
        Ok(image) => image,
        Err(why) => return Ok(Err(why)),
    };
    let attempt = fresh_name(job);
    let life = hold.saturating_add(MARGIN).as_secs().max(expiry::SHORTEST);
    let request = || {
        Ok(CreateSandbox {
            image,
            entrypoint: scripts::hold(&attempt, hold),
            resource_limits: amounts(resources.limits.as_ref())?,
            resource_requests: request::reservations(resources, spec)?,
            env: BTreeMap::new(),
            metadata: metadata::of_sandbox(job, &attempt),
            timeout: reached.server.longest_life().map_or(life, |most| life.min(most)),
            extensions: spec.pool_ref.clone().map(|pool_ref| Extensions { pool_ref }),
        })
    };
    Ok(request())
}

/// A name that no other sandbox of the Job has.
fn fresh_name(job: &Job) -> String {
    format!(
        "{:016x}",
        RandomState::new().hash_one((job.uid(), Instant::now()))
    )
}

/// Lets the recorded sandbox start its command; as often as this is asked for, it starts once.
pub(crate) async fn start(
    job: Recorded<'_>,
    parameters: &OpenSandboxExecutionParameters,
    reached: &Reached,
    references: &References,
) -> Answer {
    let hold = match hold_of(job) {
        Ok(hold) => hold,
        Err(why) => return Answer::Rejected(why),
    };
    let environment = match request::environment(job.job(), &parameters.spec, references).await {
        Ok(environment) => environment.and_then(|environment| {
            scripts::check(&environment)?;
            Ok(environment)
        }),
        Err(why) => return Answer::Unavailable(why),
    };
    let request = match environment {
        Ok(environment) => scripts::run(&hold, job.job().spec.working_dir.as_deref(), environment),
        Err(why) => return Answer::Rejected(why),
    };
    let sent = reached.client.run(job.id(), &request).await;
    // Whatever the answer is: only a look shows what became of it.
    match (look(job, reached, &hold).await, sent) {
        (Ok(Inside::Held), Ok(())) => Answer::Unavailable(Why::new(
            "BackendUnavailable",
            "the daemon in the sandbox was asked to start the command and has not; see whether there is room in the \
             sandbox's /tmp, and whether the environment is too large. It is asked again",
        )),
        (Ok(Inside::Held), Err(failure)) => unavailable(failure),
        (Ok(_), _) => Answer::Later(SignedDuration::ZERO),
        (Err(why), _) => unreached(unread(&why)),
    }
}

/// Takes the start, or else the end, of the recorded sandbox. Only when it is stored which came first may it go.
pub(crate) async fn stop(job: Recorded<'_>, reached: &Reached) -> Result<Answer, Failure> {
    let id = job.id();
    let stop = job.stop();
    if stop.is_some_and(|stop| stop.delivered_time.is_some()) {
        reached.delete(id).await?;
        return Ok(Answer::Done);
    }
    let hold = match hold_of(job) {
        Ok(hold) => hold,
        Err(why) => return Ok(Answer::Rejected(why)),
    };
    let sent = reached.client.run(id, &scripts::stop(&hold)).await;
    // Whatever the answer is: only a look shows what became of it.
    let seen = look(job, reached, &hold).await;
    if seen.as_ref().is_ok_and(Inside::is_final) {
        return Ok(Answer::Later(SignedDuration::ZERO));
    }
    // The stop does not wait for ever for a sandbox that cannot tell which came first, or not any more. What is lost
    // is a result that nobody could read.
    let waited = stop.map(|stop| Timestamp::now().duration_since(stop.requested_time.0));
    let may_answer = seen.is_err() && !reached.server.insides.are_silent_for(&uid(job.job()), DEAF);
    if waited.is_some_and(|waited| waited >= DEAF) && !may_answer {
        reached.delete(id).await?;
        return Ok(Answer::Done);
    }
    sent.map(|()| Answer::Later(AGAIN))
}

/// What became of the recorded command, as it shows now.
async fn look(job: Recorded<'_>, reached: &Reached, hold: &HoldId) -> Result<Inside, Why> {
    let spot = spot(job, hold);
    let insides = &reached.server.insides;
    Ok(
        match insides.look(&reached.client, &uid(job.job()), &spot).await? {
            Reading::Command(inside) => inside,
            Reading::Name(_) => Inside::Nothing,
        },
    )
}

fn spot(job: Recorded<'_>, hold: &HoldId) -> Spot {
    Spot::Command {
        sandbox: job.id().to_owned(),
        hold: hold.clone(),
    }
}

/// Who the recorded sandbox said it was.
fn hold_of(job: Recorded<'_>) -> Result<HoldId, Why> {
    job.uid().and_then(HoldId::parse).ok_or_else(|| {
        Why::new(
            "ForeignExecution",
            format!(
                "status.execution.uid of sandbox {} is none that this adapter has recorded",
                job.id()
            ),
        )
    })
}

#[cfg(test)]
mod tests;

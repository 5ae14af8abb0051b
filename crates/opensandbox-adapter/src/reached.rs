//! A server that a Job's parameters lead to, and what is done there the same way however commands are started.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ayatori_core::execution::{Answer, Gone, State, Why};
use ayatori_core::job::Job;
use ayatori_core::stage::{Departing, Recorded};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use crate::client::Client;
use crate::expiry;
use crate::failure::Failure;
use crate::metadata;
use crate::server::Server;
use crate::wire::{CreateSandbox, Sandbox};

/// How long a server is left alone that has no room and does not say for how long.
const NO_ROOM: Duration = Duration::from_secs(5);

/// How much earlier than it confirmed a server may show that a sandbox expires: it rounds.
const ROUNDING: SignedDuration = SignedDuration::from_secs(2);

/// A server, and a client with its key of now.
pub(crate) struct Reached {
    pub(crate) server: Arc<Server>,
    pub(crate) client: Client,
}

impl Reached {
    // -------------------------------------------------------------------------------------------- questions

    /// One sandbox, as the server shows it now.
    pub(crate) async fn look(&self, id: &str) -> Result<Option<Arc<Sandbox>>, Failure> {
        let at = Instant::now();
        let shown = self.client.get(id).await?;
        if shown.is_none() {
            self.server.sightings.note_gone(id);
        }
        Ok(shown.map(|sandbox| self.server.sightings.note(sandbox, at)))
    }

    /// The sandbox of a Job, as it was last shown, or as it is now. The Job is told of what becomes of it.
    pub(crate) async fn find(
        &self,
        uid: &str,
        job: ObjectRef<Job>,
        id: &str,
    ) -> Result<Option<Arc<Sandbox>>, Why> {
        let sightings = &self.server.sightings;
        if let Some(sandbox) = sightings.follow(uid, job.clone(), id)? {
            return Ok(Some(sandbox));
        }
        sightings.begun().await;
        match sightings.follow(uid, job, id)? {
            Some(sandbox) => Ok(Some(sandbox)),
            None => self.look(id).await.map_err(why),
        }
    }

    /// All sandboxes that carry the Job's UID.
    pub(crate) async fn all_of(&self, job_uid: &str) -> Result<Vec<Sandbox>, Why> {
        let listing = self.client.list(&metadata::of_job(job_uid)).await.map_err(why)?;
        if listing.one_page {
            return Ok(listing.sandboxes);
        }
        Err(Why::new(
            "BackendUnavailable",
            "the server lists the sandboxes of one Job on more than one page, which proves nothing of what is missing",
        ))
    }

    /// The recorded sandbox is not there. That is proof of its end where we have deleted it, or where the server has
    /// said so for a while and shows nothing else of the Job.
    pub(crate) async fn missing(&self, job: Recorded<'_>) -> Result<State, Why> {
        let id = job.id();
        let stopped = job.stop().is_some_and(|stop| stop.delivered_time.is_some());
        let for_good = self.server.is_gone_for_good(id);
        // What was prepared besides the one that is recorded runs nothing.
        let was_held = job.uid().is_some();
        let others = if for_good && !stopped && !was_held {
            self.all_of(&uid(job.job())).await?
        } else {
            Vec::new()
        };
        if let Some(other) = others.first() {
            return Ok(State::Unobservable(Why::new(
                "ForeignExecution",
                format!(
                    "sandbox {id} is gone, and {} says that it is of this Job: this adapter did not make it, or it did \
                     so before etcd was restored; delete it if it is not to run",
                    other.id
                ),
            )));
        }
        let proven = stopped || for_good;
        let message = if proven {
            format!("sandbox {id} does not exist any more")
        } else {
            format!(
                "sandbox {id} is not to be found; if it stays so, the Job ends with ExecutionLost within a minute"
            )
        };
        Ok(State::Gone(Gone {
            proven,
            why: Why::new("ExecutionNotFound", message),
        }))
    }

    /// What there is of a Job, by the ids of sandboxes.
    pub(crate) async fn left(&self, job: &Job, recorded: Option<&str>) -> Result<Vec<String>, Why> {
        let mut left: Vec<_> = self
            .all_of(&uid(job))
            .await?
            .into_iter()
            .filter(|sandbox| metadata::is_of(&sandbox.metadata, job))
            .map(|sandbox| sandbox.id)
            .collect();
        // A list that does not show it is no proof.
        if let Some(id) = recorded
            && !left.iter().any(|known| known == id)
            && self.look(id).await.map_err(why)?.is_some()
        {
            left.push(id.to_owned());
        }
        Ok(left)
    }

    // ---------------------------------------------------------------------------------------------- effects

    /// Sends a create request, and remembers what its answer tells of the server.
    pub(crate) async fn create(&self, request: &CreateSandbox) -> Result<String, Failure> {
        let at = Instant::now();
        match self.client.create(request).await {
            Ok(sandbox) => {
                let id = sandbox.id.clone();
                self.server.sightings.note(sandbox, at);
                Ok(id)
            }
            Err(failure) => {
                // A server that has no room, or does not answer what it is asked, is not asked for more at once: each
                // unanswered request is a Job lost.
                if matches!(failure, Failure::Busy { .. }) || !failure.is_certain() {
                    let pause = failure.retry_after().unwrap_or(NO_ROOM);
                    self.server.slots.close_for(pause);
                }
                if let Some(seconds) = longest_life(&failure) {
                    self.server.note_longest_life(seconds);
                }
                Err(with_untried(failure, request.image.untried))
            }
        }
    }

    /// Puts off the expiry of the recorded sandbox, and sees it put off.
    pub(crate) async fn renew(&self, job: Recorded<'_>) -> Result<Answer, Failure> {
        let id = job.id();
        let expiry = expiry::expiry(job.job(), job.accepted().at(), Timestamp::now());
        let promised = self.client.renew(id, expiry).await?;
        // What was seen has the old expiry.
        let shown = self.look(id).await?.and_then(|sandbox| sandbox.expires_at);
        let broken = shown.filter(|shown| promised.duration_since(*shown) > ROUNDING);
        Ok(broken.map_or(Answer::Done, |shown| {
            Answer::Unavailable(Why::new(
                "BackendUnavailable",
                format!("the server confirms the renewal of sandbox {id}, and still shows that it expires at {shown}"),
            ))
        }))
    }

    /// Deletes a sandbox with everything that runs in it, and sees it gone.
    pub(crate) async fn delete(&self, id: &str) -> Result<(), Failure> {
        self.client.delete(id).await?;
        if self.look(id).await?.is_some() {
            return Err(Failure::unanswered(format!(
                "the server said that it deleted sandbox {id}, and still shows it"
            )));
        }
        Ok(())
    }

    /// Deletes all that there is of a Job.
    pub(crate) async fn clear(&self, job: &Job, recorded: Option<&str>) -> Result<Answer, Why> {
        if let Some(id) = recorded {
            self.delete(id).await.map_err(why)?;
        }
        for sandbox in self.all_of(&uid(job)).await? {
            if metadata::is_of(&sandbox.metadata, job) {
                self.delete(&sandbox.id).await.map_err(why)?;
            }
        }
        self.forget(job);
        Ok(Answer::Done)
    }

    /// Nobody needs news of this Job any more.
    pub(crate) fn forget(&self, job: &Job) {
        self.server.sightings.forget(&uid(job));
        self.server.insides.forget(&uid(job));
    }
}

pub(crate) fn uid(job: &Job) -> String {
    job.uid().unwrap_or_default()
}

pub(crate) fn recorded_id(job: Departing<'_>) -> Option<&str> {
    job.execution()?.id.as_deref()
}

pub(crate) fn why(failure: Failure) -> Why {
    failure.why()
}

/// Says of a failed pull that there are credentials which were not tried. A kubelet tries them one after another.
fn with_untried(failure: Failure, untried: usize) -> Failure {
    match failure {
        Failure::ImagePull { message } if untried > 0 => Failure::ImagePull {
            message: format!(
                "{message}; the server was sent the first of {} credentials in spec.imagePullSecrets that fit the image, \
                 for it takes only one: leave the right one",
                untried.saturating_add(1)
            ),
        },
        failure => failure,
    }
}

/// The longest life that the server gives a sandbox, where it refused a longer one.
fn longest_life(failure: &Failure) -> Option<u64> {
    let Failure::Refused { message, .. } = failure else {
        return None;
    };
    let (_, rest) = message.split_once("exceeds configured maximum of ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|seconds| *seconds >= expiry::SHORTEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_pull_says_that_other_credentials_were_not_tried() {
        let failed = || Failure::ImagePull {
            message: "denied".to_owned(),
        };
        assert_eq!(with_untried(failed(), 0), failed());
        let said = with_untried(failed(), 2).why();
        assert_eq!(said.reason, "ImagePullFailed");
        assert!(
            said.message.contains("first of 3 credentials"),
            "{}",
            said.message
        );
        let other = || Failure::unanswered("late");
        assert_eq!(with_untried(other(), 2), other());
    }
}

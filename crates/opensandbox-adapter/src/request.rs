//! Whether a Job can be run in a sandbox at all, and the create request that does.

use std::collections::BTreeMap;

use ayatori_controller::references::{self, References};
use ayatori_core::execution::Why;
use ayatori_core::job::Job;
use ayatori_core::parameters::{OpenSandboxExecutionParametersSpec as Spec, RequestMapping};
use ayatori_core::resources::ResourceRequirements;
use ayatori_core::stage::Attempted;
use jiff::Timestamp;
use secrecy::ExposeSecret;

use crate::amounts::amounts;
use crate::environment::{Environment, passes_shells};
use crate::expiry;
use crate::image_auth;
use crate::metadata;
use crate::wire::{CreateSandbox, Image};
use crate::wrapper::{self, Fence};

/// The most that the words of a command may have together, in bytes. The server repeats them in every list for every
/// sandbox, and a page of 200 has to fit into what is read of an answer.
const LONGEST_COMMAND: usize = 64 << 10;

/// What a Job asks for that cannot be given it, as far as that can be said without looking anything up.
pub(crate) fn check(job: &Job, resources: &ResourceRequirements, spec: &Spec) -> Result<(), Why> {
    if job.spec.command.is_empty() {
        return Err(Why::new(
            "CommandRequired",
            "spec.command is empty; a sandbox does not run its image's own entrypoint, so name the command",
        ));
    }
    if job.spec.termination_grace_period_seconds.is_some() {
        return Err(unsupported(
            "spec.terminationGracePeriodSeconds: a sandbox is stopped at once, without a grace period; leave it out",
        ));
    }
    amounts(resources.limits.as_ref())?;
    amounts(resources.requests.as_ref())?;
    if !job.spec.image_pull_secrets.is_empty() && spec.allow_image_auth != Some(true) {
        return Err(Why::new(
            "ImageAuthNotAllowed",
            "spec.imagePullSecrets: the class does not allow image credentials to be sent to the OpenSandbox API; \
             use an image that needs none, or a class with allowImageAuth",
        ));
    }
    if let Some(secret) = references::secret_in_environment(job)
        && spec.allow_secret_env != Some(true)
    {
        return Err(Why::new(
            "SecretEnvNotAllowed",
            format!(
                "the environment refers to Secret {secret:?}, and the class does not allow values of Secrets to be \
                 sent to the OpenSandbox API; use a class with allowSecretEnv"
            ),
        ));
    }
    Ok(())
}

/// What is to be reserved for a sandbox.
pub(crate) fn reservations(
    resources: &ResourceRequirements,
    spec: &Spec,
) -> Result<BTreeMap<String, String>, Why> {
    match spec.request_mapping {
        Some(RequestMapping::Native) => amounts(resources.requests.as_ref()),
        Some(RequestMapping::AdmissionOnly) | None => Ok(BTreeMap::new()),
    }
}

pub(crate) fn unsupported(what: &str) -> Why {
    Why::new("UnsupportedFeature", what)
}

/// What the command sees, looked up when it is needed and kept nowhere. The outer error says that this could not be
/// done at present.
pub(crate) async fn environment(
    job: &Job,
    spec: &Spec,
    references: &References,
) -> references::Answer<Environment> {
    // The class may have changed its mind since the Job was accepted.
    if let Err(why) = check(job, &ResourceRequirements::default(), spec) {
        return Ok(Err(why));
    }
    let data = match references.values(job).await? {
        Ok(data) => data,
        Err(why) => return Ok(Err(why)),
    };
    let environment = match Environment::of(job, &data) {
        Ok(environment) => environment,
        Err(why) => return Ok(Err(why)),
    };
    if let Some((name, _)) = environment
        .variables
        .iter()
        .find(|(name, _)| !passes_shells(name))
    {
        return Ok(Err(unsupported(&format!(
            "the environment variable {name:?}: the shell in the sandbox may not hand it on, since its name is none \
             that a shell can assign to; use letters, digits and underscores"
        ))));
    }
    Ok(Ok(environment))
}

/// The Job's image with its credentials, looked up in the same way.
pub(crate) async fn image(job: &Job, spec: &Spec, references: &References) -> references::Answer<Image> {
    let with = |auth, untried| Image {
        uri: job.spec.image.clone(),
        auth,
        untried,
    };
    if let Err(why) = check(job, &ResourceRequirements::default(), spec) {
        return Ok(Err(why));
    }
    if job.spec.image_pull_secrets.is_empty() {
        return Ok(Ok(with(None, 0)));
    }
    let secrets = match references.pull_secrets(job).await? {
        Ok(secrets) => secrets,
        Err(why) => return Ok(Err(why)),
    };
    Ok(
        image_auth::credentials(&job.spec.image, &secrets).map(|credentials| {
            let mut credentials = credentials.into_iter();
            with(credentials.next(), credentials.len())
        }),
    )
}

/// What of a request may hold values of Secrets.
pub(crate) struct Words {
    pub(crate) environment: Environment,
    image: Image,
}

impl Words {
    /// Looks everything up that the Job refers to.
    pub(crate) async fn of(job: &Job, spec: &Spec, references: &References) -> references::Answer<Self> {
        let environment = match environment(job, spec, references).await? {
            Ok(environment) => environment,
            Err(why) => return Ok(Err(why)),
        };
        let length = environment.command.iter().map(|word| word.expose_secret().len());
        let length = length.fold(0, usize::saturating_add);
        if length > LONGEST_COMMAND {
            return Ok(Err(unsupported(&format!(
                "spec.command and spec.args have {length} bytes, more than the {LONGEST_COMMAND} that every list of \
                 sandboxes can repeat for each; hand long input over in another way"
            ))));
        }
        let image = image(job, spec, references).await?;
        Ok(image.map(|image| Self { environment, image }))
    }

    /// The create request of this attempt, sent now. The server may limit how long a sandbox lives at first.
    pub(crate) fn into_request(
        self,
        job: Attempted<'_>,
        fence: Fence,
        spec: &Spec,
        longest_life: Option<u64>,
        now: Timestamp,
    ) -> Result<CreateSandbox, Why> {
        let (accepted, attempt) = (job.accepted(), job.attempt());
        let (job, resources) = (accepted.job(), accepted.resources());
        let Environment {
            variables, command, ..
        } = self.environment;
        Ok(CreateSandbox {
            image: self.image,
            entrypoint: wrapper::entrypoint(&attempt.id, fence, job.spec.working_dir.as_deref(), command),
            resource_limits: amounts(resources.limits.as_ref())?,
            resource_requests: reservations(resources, spec)?,
            env: variables.into_iter().collect(),
            metadata: metadata::of_sandbox(job, &attempt.id),
            timeout: expiry::first_life(job, accepted.at(), now, longest_life),
            extensions: None,
        })
    }
}
